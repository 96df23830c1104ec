// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// What the kernel says to calls of mlock and its like that are wrong, on memory that is managed.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB (1ul << 20)

static int nr_wrong;

static void expect(const char *what, long result, int error) {
    if (error == 0 ? result == 0 : result == -1 && errno == error) return;
    printf("wrong: %s: %ld, %s\n", what, result, strerror(errno));
    nr_wrong++;
}

int main(void) {
    char *memory = mmap(NULL, 96 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 1, 96 * MIB);
    munmap(memory + 40 * MIB, MIB);
    char *place = memory + 20 * MIB;
    for (int by_number = 0; by_number < 2; by_number++) {
        int flags[] = { 0, 4, 8, 77, 1 << 30, -1 };
        for (int at = 0; at < 6; at++)
            expect("mlockall", by_number ? syscall(SYS_mlockall, flags[at]) : mlockall(flags[at]), EINVAL);
    }
    unsigned bad[] = { 2, 3, 77, -1u };
    for (int at = 0; at < 4; at++) {
        expect("mlock2", mlock2(place, 8192, bad[at]), EINVAL);
        expect("mlock2 by number", syscall(SYS_mlock2, place, 8192, bad[at]), EINVAL);
        expect("mlock2, much", mlock2(memory, 30 * MIB, bad[at]), EINVAL);
    }
    expect("mlock of nothing", mlock(place, 0), 0);
    expect("mlock past the last address", mlock(place, -5000ul), EINVAL);
    expect("munlock past the last address", munlock(place, -5000ul), EINVAL);
    expect("mlock with a gap", mlock(memory + 39 * MIB + MIB / 2, MIB), ENOMEM);
    expect("munlock with a gap", munlock(memory + 39 * MIB + MIB / 2, MIB), ENOMEM);
    expect("mlock of no mapping", mlock(memory + 40 * MIB, 4096), ENOMEM);
    expect("mlock", mlock(place + 5, 8192), 0);
    expect("munlock", munlock(place + 5, 8192), 0);
    expect("munlockall", munlockall(), 0);
    struct rlimit none = { 0, 0 };
    setrlimit(RLIMIT_MEMLOCK, &none);
    if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) return 1;
    expect("mlock without a limit's leave", mlock(place, 4096), EPERM);
    expect("mlock of nothing without leave", mlock(place, 0), EPERM);
    expect("mlock of all of it without leave", mlock(memory, 30 * MIB), EPERM);
    expect("mlockall without leave", mlockall(MCL_CURRENT), EPERM);
    expect("mlockall, wrong and without leave", mlockall(8), EINVAL);
    puts(nr_wrong == 0 ? "ok" : "not ok");
    return nr_wrong != 0;
}
