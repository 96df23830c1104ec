// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M 32M
/* A program registers rseq itself, in place of the C library, in mapped memory. The kernel writes there whenever it has
 * interrupted the thread, also once that memory would have left RAM. */
#include "check.h"
#include <sched.h>

enum { OTHERS = 60 << 20, LEN = 1 << 20, SIGNATURE = 0x53053053 };
struct area { uint32_t cpu_at_start, cpu; uint64_t section; uint32_t flags, padding[3]; };

int main(int argc, char **argv) {
    if (argc == 1) {
        setenv("GLIBC_TUNABLES", "glibc.pthread.rseq=0", 1);
        execl("/proc/self/exe", argv[0], "again", (char *)NULL);
        return 3;
    }
    char *mapped = anonymous(LEN);
    volatile struct area *area = (struct area *)(mapped + LEN / 2);
    area->cpu = -1;
    CHECK(syscall(SYS_rseq, area, sizeof *area, 0, SIGNATURE) == 0, "rseq");
    char *others = anonymous(OTHERS);
    for (int round = 0; round < 3; round++) {
        for (size_t at = 0; at < OTHERS; at += PAGE) others[at]++;
        for (int turn = 0; turn < 20; turn++) usleep(500), sched_yield();
        CHECK((int)area->cpu >= 0 && area->cpu < 4096, "the CPU is %u", area->cpu);
    }
    pid_t child = fork();
    if (child == 0) {
        for (size_t at = 0; at < OTHERS; at += PAGE) others[at]++;
        usleep(1000);
        _exit((int)area->cpu < 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "the child: %x", status);
    DONE;
}
