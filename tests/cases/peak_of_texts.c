// EXPECT: exit 0, last line "ok"
// BUDGETS: 32M
/* Texts that the C library allocates for the program, 160 MB in all: what the process has in RAM stays near its
   budget. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <wchar.h>
#include "peak.h"
enum { NR_TEXTS = 23000, LEN = 1000, MOST_MIB = 48 };
int main(void) {
    static char *copies[NR_TEXTS], *parts[NR_TEXTS], *printed[NR_TEXTS], text[LEN + 1];
    static wchar_t *wide[NR_TEXTS / 4], wide_text[LEN + 1];
    memset(text, 'a', LEN);
    wmemset(wide_text, L'a', LEN);
    for (int i = 0; i < NR_TEXTS; i++) {
        sprintf(text, "%d", i);
        text[strlen(text)] = 'a';
        copies[i] = strdup(text), parts[i] = strndup(text, LEN - 1);
        if (asprintf(&printed[i], "%s, %d", text, i) < LEN) return puts("not printed"), 1;
        wide_text[1] = i + 1, wide[i / 4] = wcsdup(wide_text);
    }
    for (int i = 0; i < NR_TEXTS; i++) {
        if (atoi(copies[i]) != i || strlen(copies[i]) != LEN || atoi(parts[i]) != i || strlen(parts[i]) != LEN - 1)
            return printf("wrong: %d\n", i), 1;
        if (atoi(strchr(printed[i], ' ')) != i || wide[i / 4][1] != i / 4 * 4 + 4 || wcslen(wide[i / 4]) != LEN)
            return printf("wrong: %d\n", i), 1;
    }
    return say_peak(MOST_MIB);
}
