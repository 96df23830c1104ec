// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M 96M 160M
// A program asks for huge pages at once (MADV_COLLAPSE), where its memory is present and where it has left RAM. It is
// not refused as wrong, and nothing is lost.
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#define BLOCK (2ul << 20)
#define BLOCKS 32

int main(void)
{
    char *mapping = mmap(NULL, (BLOCKS + 1) * BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *at = (char *)(((uintptr_t)mapping + BLOCK - 1) & -BLOCK);
    for (size_t i = 0; i < BLOCKS * BLOCK; i += 4096)
        memset(at + i, (int)(i / 4096 % 251), 4096);
    for (size_t block = 0; block < BLOCKS; block++)
        if (madvise(at + block * BLOCK, BLOCK, MADV_COLLAPSE) != 0 && errno == EINVAL)
            return printf("FAIL block %zu: EINVAL\n", block), 1;
    for (size_t i = 0; i < BLOCKS * BLOCK; i++)
        if (at[i] != (char)(i / 4096 % 251))
            return printf("FAIL byte %zx\n", i), 1;
    puts("ok");
    return 0;
}
