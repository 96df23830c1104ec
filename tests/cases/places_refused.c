// BUDGETS: 24M
// Places for results that may not be written: the kernel refuses the call, or goes on without.
#include "cold.h"
#include <linux/io_uring.h>
#include <linux/sched.h>

static int status_of(long child) {
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child ? status : -1;
}

int main(void) {
    start_engine();
    struct io_uring_params *params = (void *)anonymous(2 * PAGE);
    memset(params, 0, PAGE);
    mprotect(params, PAGE, PROT_READ);
    long ring = syscall(SYS_io_uring_setup, 4, params);
    CHECK(ring == -1 && (errno == EFAULT || errno == ENOSYS || errno == EPERM), "ring %ld", ring);
    char *memory = anonymous(4 * MIB);
    memset(memory, 1, 4 * MIB);
    for (int kind = 0; kind < 4; kind++) {
        char *place = memory + kind * MIB;
        if (kind == 1) mprotect(place, PAGE, PROT_READ);
        if (kind == 2) mprotect(place, PAGE, PROT_NONE);
        if (kind == 3) munmap(place, PAGE);
        send_out(memory, 4 * MIB);
        long child = syscall(SYS_clone, CLONE_CHILD_SETTID | SIGCHLD, 0, 0, place, 0);
        if (child == 0) _exit(kind == 0 && *(int *)place != getpid());
        CHECK(status_of(child) == 0, "child's id, kind %d", kind);
        child = syscall(SYS_clone, CLONE_PARENT_SETTID | SIGCHLD, 0, place, 0, 0);
        if (child == 0) _exit(0);
        CHECK(status_of(child) == 0, "parent's id, kind %d", kind);
    }
    return nr_wrong != 0;
}
