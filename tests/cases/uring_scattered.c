// EXPECT: exit 0, last line "ok"
// NEEDS: move
// BUDGETS: 24M
// LIMIT_S: 60
/* Requests of io_uring that name 50 small pieces, each in another 2 MiB: together more of these than the budget. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NR_PIECES = 50, PIECE = 1024, APART = 2 << 20, OTHERS = 48 << 20, NR_ROUNDS = 4 };

static struct io_uring_params params;
static char *rings, *memory, *others;
static struct io_uring_sqe *entries;
static int ring;

static unsigned *word(unsigned offset) { return (unsigned *)(rings + offset); }

/* Makes one request, and waits for its end. */
static int perform(int operation, int fd, const struct iovec *list) {
    memset(entries, 0, sizeof *entries);
    entries[0].opcode = operation, entries[0].fd = fd, entries[0].addr = (uintptr_t)list, entries[0].len = NR_PIECES;
    word(params.sq_off.array)[0] = 0, word(params.sq_off.array)[1] = 0;
    __atomic_fetch_add(word(params.sq_off.tail), 1, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1) return -errno;
    unsigned head = *word(params.cq_off.head);
    int result = ((struct io_uring_cqe *)(rings + params.cq_off.cqes))[head & *word(params.cq_off.ring_mask)].res;
    __atomic_store_n(word(params.cq_off.head), head + 1, __ATOMIC_RELEASE);
    return result;
}

static char *piece(int i) { return memory + (size_t)i * APART + i * 40000; }

static void use_other_memory(void) {
    for (size_t at = 0; at < OTHERS; at += 4096) others[at]++;
}

int main(void) {
    int all = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
    memory = mmap(NULL, (size_t)NR_PIECES * APART, all, flags, -1, 0), others = mmap(NULL, OTHERS, all, flags, -1, 0);
    ring = syscall(SYS_io_uring_setup, 2, &params);
    if (ring == -1) return puts("io_uring is not permitted here\nok"), 0;
    size_t len = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe) + 64;
    rings = mmap(NULL, len, all, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING);
    entries = mmap(NULL, 4096, all, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQES);
    FILE *file = tmpfile();
    struct iovec list[NR_PIECES];
    for (int i = 0; i < NR_PIECES; i++) list[i] = (struct iovec){piece(i), PIECE};
    for (int round = 0; round < NR_ROUNDS; round++) {
        for (size_t at = 0; at < (size_t)NR_PIECES * APART; at += 4096) memory[at]++;
        for (int i = 0; i < NR_PIECES; i++) memset(piece(i), round + i, PIECE);
        use_other_memory();
        int written = perform(IORING_OP_WRITEV, fileno(file), list);
        for (int i = 0; i < NR_PIECES; i++) memset(piece(i), 0, PIECE);
        use_other_memory();
        int read = perform(IORING_OP_READV, fileno(file), list);
        if (written != NR_PIECES * PIECE || read != written) return printf("%d, %d\n", written, read), 1;
        for (int i = 0; i < NR_PIECES; i++)
            for (int at = 0; at < PIECE; at++)
                if (piece(i)[at] != (char)(round + i)) return puts("wrong"), 1;
    }
    puts("ok");
    return 0;
}
