// What short cases share: checks that are counted, and pages that hold their own numbers.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#define MIB (1ul << 20)
#define PAGE 4096ul
static int nr_wrong;
#define CHECK(right, ...) \
    do { \
        int error = errno; \
        if (!(right) && ++nr_wrong < 12) { \
            printf("line %d: ", __LINE__); \
            printf(__VA_ARGS__); \
            printf(" (%s)\n", strerror(error)); \
        } \
    } while (0)
#define DONE return (puts(nr_wrong ? "FAIL" : "ok"), nr_wrong != 0)
__attribute__((unused)) static char *anonymous(size_t len) {
    return mmap(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
// Each page of a range gets a number of its own; how many pages have another.
__attribute__((unused)) static void fill(char *range, size_t len) {
    for (size_t at = 0; at < len; at += PAGE) *(uint64_t *)(range + at) = at + 1;
}
__attribute__((unused)) static long wrong_pages(char *range, size_t len) {
    long wrong = 0;
    for (size_t at = 0; at < len; at += PAGE) wrong += *(volatile uint64_t *)(range + at) != at + 1;
    return wrong;
}
