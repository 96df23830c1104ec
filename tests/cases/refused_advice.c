// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M 96M 160M
/* Advice with a length beyond the largest number, or in a list with such a length, is refused as a whole: nothing is
   lost. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define M (1ul << 20)
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif
#define GUARD_INSTALL 102

int main(void) {
    char *at = mmap(NULL, 64 * M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return 2;
    memset(at, 7, 64 * M);
    size_t lens[] = {-1ul, -4095ul, -4096ul, -8192ul, -(size_t)at};
    int advices[] = {MADV_DONTNEED, MADV_FREE, MADV_PAGEOUT, MADV_WILLNEED, MADV_HUGEPAGE, GUARD_INSTALL};
    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++)
        for (size_t j = 0; j < sizeof advices / sizeof *advices; j++)
            if (madvise(at + M, lens[i], advices[j]) != -1 || errno != EINVAL) {
                printf("FAIL length %zx, advice %d: errno %d\n", lens[i], advices[j], errno);
                return 1;
            }
    if (madvise(NULL, -1ul, MADV_DONTNEED) != -1 || errno != EINVAL) {
        printf("FAIL all addresses: errno %d\n", errno);
        return 1;
    }
    struct iovec list[] = {{at + 2 * M, M}, {at + 4 * M, -4096ul}};
    long self = syscall(SYS_pidfd_open, getpid(), 0);
    if (self >= 0 && syscall(SYS_process_madvise, self, list, 2, MADV_DONTNEED, 0) >= 0)
        printf("FAIL a list\n");
    if (self >= 0 && (syscall(SYS_process_madvise, self, 8, 2, MADV_PAGEOUT, 0) >= 0 || errno != EFAULT))
        printf("FAIL a list that is not there\n");
    for (size_t i = 0; i < 64 * M; i += 4096)
        if (at[i] != 7) {
            printf("FAIL lost at %zx\n", i);
            return 1;
        }
    puts("ok");
    return 0;
}
