// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 100
// A program whose memory is a static array stays within the budget, and finds in it what it wrote before main.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define M (1ul << 20)
#define BYTES (96 * M)
#define MOST_RESIDENT (56 * M)

static unsigned char array[BYTES];
static unsigned small[5000];

__attribute__((constructor)) static void before_main(void) {
    for (size_t at = 0; at < BYTES; at += 7 * M) array[at + 123] = 77;
}

static size_t resident(void) {
    size_t pages, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%zu %zu", &pages, &resident) != 2) exit(3);
    fclose(file);
    return resident * 4096;
}

static int is_right(void) {
    for (size_t at = 0; at < BYTES; at += 4096)
        if (array[at + 1] != (unsigned char)(at / 4096 * 5 + 1)) return 0;
    for (size_t at = 0; at < BYTES; at += 7 * M)
        if (array[at + 123] != 77) return 0;
    return small[4999] == 12;
}

int main(void) {
    small[4999] = 12;
    for (size_t at = 0; at < BYTES; at += 4096) {
        if (array[at + 1] != 0) return 2;
        array[at + 1] = (unsigned char)(at / 4096 * 5 + 1);
    }
    if (!is_right()) return 4;
    if (getenv("LD_PRELOAD") && resident() > MOST_RESIDENT) {
        printf("%zu MiB resident\n", resident() / M);
        return 5;
    }
    pid_t child = fork();
    if (child == 0) _exit(is_right() ? 0 : 1);
    int status = -1;
    if (waitpid(child, &status, 0) != child || status != 0 || !is_right()) return 6;
    puts("ok");
    return 0;
}
