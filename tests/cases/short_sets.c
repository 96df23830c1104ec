// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// select with sets of 256 at the end of a mapping: the kernel reads no further than its table of descriptors is long,
// which has no more entries here.
#include "cold.h"
#include <sys/select.h>
#define COLD(call) (send_out(memory, PAGE), errno = 0, (call))
int main(void) {
    start_engine();
    char *memory = anonymous(8 * MIB), *border = memory + 4 * MIB;
    munmap(border, PAGE);
    int ends[2];
    if (pipe(ends) || write(ends[1], "x", 1) != 1) return 2;
    for (int times = 0; times < 2; times++) {
        if (times && dup2(ends[0], 200) != 200) return 2;
        int descriptor = times ? 200 : ends[0];
        fd_set *set = (fd_set *)(border - 32);
        for (int i = 0; i < 4; i++) {
            struct timeval at_once = {0, 0};
            struct timespec now = {0, 0};
            memset(set, 0, 32);
            FD_SET(descriptor, set);
            int nr = i == 0   ? COLD(select(1024, set, NULL, NULL, &at_once))
                     : i == 1 ? COLD(syscall(SYS_select, 1024, set, NULL, NULL, &at_once))
                     : i == 2 ? COLD(select(300, NULL, NULL, set, &at_once)) + 1
                              : COLD(pselect(1024, set, NULL, NULL, &now, NULL));
            CHECK(nr == 1 && !FD_ISSET(descriptor, set) == (i == 2), "call %d for %d: %d", i, descriptor, nr);
        }
    }
    DONE;
}
