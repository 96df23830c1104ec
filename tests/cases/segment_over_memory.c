// EXPECT: exit 0, last line "ok"
// BUDGETS: 16M 96M 160M
// A System V segment is attached over a part of managed memory (SHM_REMAP). What lies around it stays, and what the
// kernel refuses changes nothing. Once detached, the place is free.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <string.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define SIZE (96 * MIB)
#define SEGMENT (4 * MIB)

static char *memory;

static void check(int is_right, const char *what) {
    if (is_right) return;
    printf("wrong: %s\n", what);
    exit(1);
}

static void fill(size_t from, size_t to) {
    for (size_t at = from; at < to; at += 512) *(size_t *)(memory + at) = at * 7;
}

static void check_around(size_t from, size_t to) {
    for (size_t at = 0; at < SIZE; at += 512)
        if (at < from || at >= to) check(*(size_t *)(memory + at) == at * 7, "what lies around");
}

int main(void) {
    memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int id = shmget(IPC_PRIVATE, SEGMENT, 0600);
    char *elsewhere = shmat(id, NULL, 0);
    check(elsewhere != (char *)-1, "shmat");
    shmctl(id, IPC_RMID, NULL);
    for (int round = 0; round < 6; round++) {
        size_t from = (11 + 6 * round) * MIB + 64 * 1024, to = from + SEGMENT;
        char *place = memory + from;
        int by_number = round & 1, has_offset = round == 2;
        fill(0, SIZE);
        check(shmat(-1, place, SHM_REMAP) == (void *)-1 && errno == EINVAL, "no such segment");
        check(shmat(id, place + 100, SHM_REMAP) == (void *)-1 && errno == EINVAL, "no start of a page");
        check(shmat(id, place, 0) == (void *)-1 && errno == EINVAL, "not without the flag");
        check_around(0, 0);
        memset(elsewhere, 9 + round, SEGMENT);
        char *at = by_number ? (char *)syscall(SYS_shmat, id, place, SHM_REMAP)
                             : shmat(id, place + has_offset * 300, SHM_REMAP | (has_offset ? SHM_RND : 0));
        check(at == place, "attached there");
        for (int again = 0; again < 2; again++) {
            check_around(from, to);
            for (size_t byte = 0; byte < SEGMENT; byte += 512) check(place[byte] == 9 + round, "the segment");
        }
        elsewhere[1234567] = 42;
        check(place[1234567] == 42, "it is shared");
        check(shmdt(place) == 0, "shmdt");
        check(mmap(place, SEGMENT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == place,
              "mmap");
        for (size_t byte = 0; byte < SEGMENT; byte += 512) check(place[byte] == 0, "new memory");
        fill(from, to);
        check_around(0, 0);
        check(elsewhere[1234567] == 42, "the segment stays");
    }
    puts("ok");
    return 0;
}
