// EXPECT: exit 0, last line "ok"
// BUDGETS: 16M 96M 160M
// Memory with guards in its middle is wiped in children (MADV_WIPEONFORK), before or after the guards came: there it is
// zero all over, and has no guards. The parent keeps both.
#define _GNU_SOURCE
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define PAGES 8192
#define GUARD_INSTALL 102

static sigjmp_buf back;
static volatile char *memory;

static void on_fault(int signal) {
    (void)signal;
    siglongjmp(back, 1);
}

/* A byte of a page, or -1: it has a guard. */
static int at(int page) {
    return sigsetjmp(back, 1) ? -1 : (unsigned char)memory[page * PAGE + 7];
}

static int right(int is_child) {
    for (int page = 0; page < PAGES; page++) {
        int wiped = page >= 409 && page < 1669, guarded = page >= 620 && page < 1192;
        int want = wiped && is_child ? 0 : guarded ? -1 : page % 251 + 1;
        if (at(page) != want) {
            printf("FAIL page %d is %d, not %d, in the %s\n", page, at(page), want, is_child ? "child" : "parent");
            return 0;
        }
    }
    return 1;
}

int main(void) {
    signal(SIGSEGV, on_fault);
    signal(SIGBUS, on_fault);
    for (int order = 0; order < 2; order++) {
        char *p = mmap(0, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (int page = 0; page < PAGES; page++) memset(p + page * PAGE, page % 251 + 1, PAGE);
        memory = p;
        for (int step = 0; step < 2; step++) {
            int is_guard = step == order;
            int result = is_guard ? madvise(p + 620 * PAGE, 572 * PAGE, GUARD_INSTALL)
                                  : madvise(p + 409 * PAGE, 1260 * PAGE, MADV_WIPEONFORK);
            if (result && is_guard && errno == EINVAL) {
                printf("this kernel has no guards (Linux 6.13)\nok\n");
                return 0;
            }
            if (result) return perror("madvise"), 1;
        }
        fflush(stdout);
        pid_t child = fork();
        if (!child) _exit(right(1) ? fflush(stdout), 0 : (fflush(stdout), 1));
        int status = -1;
        if (waitpid(child, &status, 0) != child || status || !right(0)) return 1;
        munmap(p, PAGES * PAGE);
    }
    printf("ok\n");
    return 0;
}
