// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// NEEDS: root
// LIMIT_S: 60
// A regular file whose reader waits, as that of the kernel's trace does: a signal ends a long read of it.
#include "cold.h"
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
static volatile int nr_alarms;
static void on_alarm(int number) {
    (void)number;
    nr_alarms++;
}
int main(void) {
    start_engine();
    char *memory = anonymous(8 * MIB), folder[] = "/tmp/tracing-XXXXXX", path[64], file[80];
    memset(memory, 1, 8 * MIB);
    // Its own instance of the trace, in a mount namespace of its own.
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) || !mkdtemp(folder)) return 2;
    if (mount("none", folder, "tracefs", 0, NULL)) {
        rmdir(folder);
        puts("no tracefs");
        DONE;
    }
    sprintf(path, "%s/instances/folioswap-%d", folder, getpid());
    sprintf(file, "%s/trace_pipe", path);
    CHECK(!mkdir(path, 0700), "mkdir");
    int trace = open(file, O_RDONLY);
    CHECK(trace >= 0, "open");
    struct sigaction action = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &action, NULL);
    for (int way = 0; way < 4; way++) {
        struct iovec list[2] = {{memory, 2 * MIB}, {memory + 3 * MIB, 2 * MIB}};
        send_out(memory, 8 * MIB);
        struct itimerval soon = {{0, 200000}, {0, 200000}}, never = {{0, 0}, {0, 0}};
        setitimer(ITIMER_REAL, &soon, NULL);
        ssize_t got = way == 0   ? read(trace, memory, 4 * MIB)
                      : way == 1 ? readv(trace, list, 2)
                      : way == 2 ? syscall(SYS_read, trace, memory, 4 * MIB)
                                 : syscall(SYS_readv, trace, list, 2);
        CHECK(got == -1 && errno == EINTR && nr_alarms > way, "way %d: %zd, %d alarms", way, got, nr_alarms);
        setitimer(ITIMER_REAL, &never, NULL);
    }
    close(trace);
    rmdir(path);
    umount(folder);
    rmdir(folder);
    // Such files are read to the end as before.
    int own = open("/proc/self/mem", O_RDONLY);
    CHECK(pread(own, memory, 4 * MIB, (off_t)(uintptr_t)beside) == 4 * MIB, "pread of /proc/self/mem");
    CHECK(memory[0] == 1 && memory[4 * MIB - PAGE] == 1, "content");
    send_out(memory, 8 * MIB);
    lseek(own, (off_t)(uintptr_t)beside, SEEK_SET);
    CHECK(read(own, memory, 4 * MIB) == 4 * MIB, "read of /proc/self/mem");
    struct iovec list[2] = {{memory, 2 * MIB}, {memory + 3 * MIB, 2 * MIB}};
    lseek(own, (off_t)(uintptr_t)beside, SEEK_SET);
    CHECK(readv(own, list, 2) == 4 * MIB, "readv of /proc/self/mem");
    DONE;
}
