// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 90
// Memory that once was a thread's signal stack, and is used for something else since, leaves RAM as other memory does.
#include "check.h"

enum { NR = 600, LEN = 64 << 10, OTHERS = 48 << 20 };
static char *blocks[NR], *beside[NR];

static void *run(void *argument) {
    long i = (long)argument;
    stack_t stack = { .ss_sp = blocks[i] = malloc(LEN), .ss_size = LEN }, none = { .ss_flags = SS_DISABLE };
    CHECK(sigaltstack(&stack, NULL) == 0, "a stack");
    if (i % 3 == 1) stack.ss_sp = beside[i] = malloc(LEN);
    if (i % 3 == 1) CHECK(sigaltstack(&stack, NULL) == 0, "another stack");
    if (i % 3 == 2) CHECK(sigaltstack(&none, NULL) == 0, "no stack");
    if (i % 3 != 1) memset(beside[i] = malloc(LEN), 1, LEN);
    return argument;
}

int main(void) {
    char *others = anonymous(OTHERS);
    fill(others, OTHERS);
    for (long i = 0; i < NR; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, run, (void *)i) || pthread_join(thread, NULL)) return 2;
        memset(blocks[i], (int)i, LEN);
    }
    CHECK(wrong_pages(others, OTHERS) == 0, "pages");
    for (int i = 0; i < NR; i++)
        for (size_t at = 0; at < LEN; at += PAGE) CHECK(blocks[i][at] == (char)i, "block %d", i);
    DONE;
}
