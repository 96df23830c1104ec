/* Shared by the test programs: checks that print where they failed, and patterns that reveal misplaced data. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define FOLIO (2 * MIB)

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            dprintf(2, "%s:%d: %s (errno %d: %s)\n", __FILE__, __LINE__, #condition, errno, strerror(errno));          \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

static inline uint64_t word_at(uint64_t seed, size_t index) { return (seed + index) * 0x9e3779b97f4a7c15ull; }

static inline void fill(void *at, size_t len, uint64_t seed) {
    uint64_t *words = at;
    for (size_t i = 0; i < len / 8; i++)
        words[i] = word_at(seed, i);
}

static inline int holds(const void *at, size_t len, uint64_t seed) {
    const uint64_t *words = at;
    for (size_t i = 0; i < len / 8; i++)
        if (words[i] != word_at(seed, i))
            return 0;
    return 1;
}

static inline int is_zero(const void *at, size_t len) {
    const uint64_t *words = at;
    for (size_t i = 0; i < len / 8; i++)
        if (words[i])
            return 0;
    return 1;
}

static inline void *map(size_t len) {
    void *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static inline int is_present(void *at) {
    unsigned char present = 0;
    CHECK(mincore((void *)((uintptr_t)at & ~(uintptr_t)4095), 4096, &present) == 0);
    return present & 1;
}

/* Evicts whole folios, and waits until they are out of RAM. */
static inline void send_out(void *at, size_t len) {
    for (int attempt = 0; attempt < 200; attempt++) {
        CHECK(madvise(at, len, MADV_PAGEOUT) == 0);
        size_t present = 0;
        for (size_t offset = 0; offset < len; offset += FOLIO)
            present += is_present((char *)at + offset);
        if (!present)
            return;
        usleep(1000);
    }
    CHECK(!"memory stays in RAM");
}
