// BUDGETS: 24M 96M
// EXPECT: exit 0, last line "done"
// LIMIT_S: 60
// Sandboxes set the limit of open descriptors to 0, or to few, so that the process opens no more. The kernel refuses a
// poll of more descriptors than that.
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(cond) do { if (!(cond)) failed(__LINE__, #cond); } while (0)
static void failed(int line, const char *what) {
    printf("line %d: %s (errno %d)\n", line, what, errno);
    fflush(stdout);
    _Exit(1);
}

static const size_t size = 80 << 20;

static uint64_t *filled(void) {
    uint64_t *words = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(words != MAP_FAILED);
    for (size_t at = 0; at < size / sizeof *words; at++) words[at] = at * 0x9e3779b97f4a7c15;
    return words;
}

static void check(const uint64_t *words) {
    for (size_t at = 0; at < size / sizeof *words; at++) CHECK(words[at] == at * 0x9e3779b97f4a7c15);
}

static void limited(rlim_t most) {
    uint64_t *before = filled();
    struct rlimit limit = {most, most};
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    while (dup(0) >= 0) {}
    CHECK(errno == EMFILE);
    uint64_t *after = filled();
    check(before);
    check(after);
}

int main(void) {
    for (rlim_t most = 0; most < 6; most++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            limited(most);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    limited(0);
    puts("done");
    return 0;
}
