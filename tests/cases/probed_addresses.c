// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 60
// A program probes addresses, as unwinders and crash handlers do: what is not mapped, or has no access, is refused at
// once.
#include "cold.h"
#include <sys/uio.h>
#include <time.h>
static char *memory;
static int probe(int way, void *at) {
    char word[8];
    struct iovec own = {word, 8}, theirs = {at, 8};
    switch (way) {
    case 0: return process_vm_readv(getpid(), &own, 1, &theirs, 1, 0);
    case 1: return process_vm_writev(getpid(), &own, 1, &theirs, 1, 0);
    case 2: return syscall(SYS_process_vm_readv, getpid(), &own, 1, &theirs, 1, 0);
    case 3: return process_vm_readv(getpid(), &theirs, 1, &own, 1, 0);
    case 4: return syscall(SYS_rt_sigprocmask, 99, at, 0, 8) == -1 && errno == EINVAL ? 8 : -1;
    default: return access(at, F_OK) == -1 && errno == ENOENT ? 8 : -1;
    }
}
int main(void) {
    start_engine();
    memory = anonymous(64 * MIB);
    memory = (char *)(((uintptr_t)memory + 2 * MIB - 1) & -(2 * MIB));
    memset(memory, 0, 48 * MIB);
    munmap(memory + 12 * MIB, MIB);
    mprotect(memory + 20 * MIB, MIB, PROT_NONE);
    for (int way = 0; way < 6; way++) {
        for (int place = 0; place < 3; place++) {
            char *at = place == 2 ? (char *)PAGE : memory + (12 + place * 8) * MIB;
            double fastest = 1e9;
            for (int i = 0; i < 20; i++) {
                struct timespec from, to;
                errno = 0;
                clock_gettime(CLOCK_MONOTONIC, &from);
                int result = probe(way, at + i * (place < 2 ? PAGE : 8));
                CHECK(result == -1 && errno == EFAULT, "way %d, place %d: %d", way, place, result);
                clock_gettime(CLOCK_MONOTONIC, &to);
                double us = (to.tv_sec - from.tv_sec) * 1e6 + (to.tv_nsec - from.tv_nsec) / 1e3;
                if (us < fastest) fastest = us;
            }
            CHECK(fastest < 2000, "way %d, place %d: %.0f us", way, place, fastest);
        }
    }
    // What is only not in RAM is found.
    send_out(memory, 48 * MIB);
    use_others();
    for (int way = 0; way < 6; way++) CHECK(probe(way, memory + way * 6 * MIB + (way > 1 ? 4 * MIB : 0)) == 8, "way %d", way);
    DONE;
}
