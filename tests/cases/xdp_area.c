// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// NEEDS: root move
// The area of an AF_XDP socket is out of RAM when the kernel pins it, by the C library and by number. It keeps its
// content afterwards.
#include "check.h"
#include <linux/if_xdp.h>
#include <sys/socket.h>
#ifndef SOL_XDP
#define SOL_XDP 283
#endif
#define LEN (4 * MIB)
int main(void) {
    char *other = anonymous(40 * MIB), *areas[2] = {anonymous(LEN), anonymous(LEN)};
    for (int by_number = 0; by_number < 2; by_number++) {
        char *area = areas[by_number];
        int file = socket(AF_XDP, SOCK_RAW, 0);
        if (file < 0 && errno == EAFNOSUPPORT) DONE; // this kernel has none
        fill(area, LEN);
        fill(other, 40 * MIB);
        madvise(area, LEN, MADV_PAGEOUT);
        struct xdp_umem_reg about = {.addr = (uintptr_t)area, .len = LEN, .chunk_size = PAGE};
        long set = by_number ? syscall(SYS_setsockopt, file, SOL_XDP, XDP_UMEM_REG, &about, sizeof about)
                             : setsockopt(file, SOL_XDP, XDP_UMEM_REG, &about, sizeof about);
        CHECK(set == 0, "%d: setsockopt", by_number);
    }
    fill(other, 40 * MIB);
    for (int i = 0; i < 2; i++) CHECK(wrong_pages(areas[i], LEN) == 0, "area %d", i);
    DONE;
}
