// RUN: gcc -O2 -o fork_advice fork_advice.c && ./fork_advice    EXPECT: exit 0
// BUDGETS: 64M
/* Advice on what children get ends with its mapping, also that of a large block of malloc, and moves along with it. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#define M (1ul << 20)
static int child_sees(char *p, int byte) {
    int status;
    pid_t child = fork();
    if (!child)
        _exit(*(volatile char *)p != byte);
    return waitpid(child, &status, 0) == child && status == 0;
}
int main(void) {
    int advices[] = {MADV_WIPEONFORK, MADV_DONTFORK};
    for (int i = 0; i < 2; i++)
        for (int grow = 0; grow < 2; grow++) {
            char *p = malloc(40 * M), *old = p;
            memset(p, 3, 40 * M);
            madvise((char *)(((size_t)p + 4095) & ~4095ul), 39 * M, advices[i]);
            if (grow) { /* the old addresses, if it has moved, are others' */
                char *wall = mmap(p + 40 * M, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
                p = realloc(p, 64 * M);
                if (wall != MAP_FAILED)
                    munmap(wall, 4096);
            }
            free(p);
            char *q = malloc(40 * M);
            memset(q, 4, 40 * M);
            if (!child_sees(q + 5 * M, 4)) {
                printf("FAIL: advice %d is still there (%s address)\n", advices[i], q == old ? "same" : "another");
                return 1;
            }
            free(q);
        }
    char *p = mmap(0, 8 * M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *far = mmap(0, 8 * M, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    memset(p, 5, 8 * M);
    madvise(p, 8 * M, MADV_WIPEONFORK);
    if (mremap(p, 8 * M, 8 * M, MREMAP_MAYMOVE | MREMAP_FIXED, far) != far || far[M] != 5 || !child_sees(far + M, 0)) {
        printf("FAIL: the advice has not moved along\n");
        return 1;
    }
    return 0;
}
