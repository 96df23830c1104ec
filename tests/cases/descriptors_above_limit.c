// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// A program that has 4096 descriptors, and then lowers its limit to 64, forks.
#include "cold.h"
int main(void) {
    start_engine();
    char *memory = anonymous(64 * MIB);
    fill(memory, 64 * MIB);
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0, "hard limit");
    int zero = open("/dev/zero", O_RDONLY);
    for (int number = 4; number < 4096 && number < (int)limit.rlim_cur; number++) dup2(zero, number);
    limit.rlim_cur = 64;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0, "limit");
    int status = -1;
    pid_t child = fork();
    if (child == 0) _exit(wrong_pages(memory, 64 * MIB) != 0);
    waitpid(child, &status, 0);
    CHECK(status == 0, "the child's status: %#x", status);
    CHECK(wrong_pages(memory, 64 * MIB) == 0, "in the parent");
    DONE;
}
