/* mremap to fixed addresses, partly unmapped blocks, and mappings over managed memory. */
#include "access.h"
#include <sys/syscall.h>

#define PAGE 4096
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

/* Unmapped pages are inaccessible, whatever their neighbours are. */
static void holes(void) {
    char *at = map(3 * MIB + PAGE);
    CHECK(can_write(at + 3 * MIB));
    fill(at, 3 * MIB + PAGE, 1);
    CHECK(munmap(at + MIB, PAGE) == 0 && !can_read(at + MIB) && !can_write(at + MIB + 1));
    CHECK(can_write(at + MIB - 1) && can_write(at + MIB + PAGE));
    CHECK(munmap(at + 3 * MIB, PAGE) == 0 && !can_read(at + 3 * MIB) && can_write(at + 3 * MIB - 1));
    CHECK(munmap(at + MIB - PAGE, 3 * PAGE) == 0); /* includes a page that is unmapped already */
    CHECK(!can_read(at + MIB - PAGE) && !can_read(at + MIB + PAGE) && holds(at, MIB - PAGE, 1));
    for (size_t i = (MIB + 2 * PAGE) / 8; i < 3 * MIB / 8; i++)
        CHECK(((uint64_t *)at)[i] == word_at(1, i));
    CHECK(mmap(at + MIB - PAGE, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
          at + MIB - PAGE);
    CHECK(is_zero(at + MIB - PAGE, 3 * PAGE) && can_write(at + MIB) && holds(at, MIB - PAGE, 1));
    CHECK(munmap(at, 3 * MIB) == 0);
    /* In a large mapping, most of which is out of RAM. */
    size_t len = 64 * MIB;
    at = map(len);
    fill(at, len, 2);
    for (size_t part = 0; part < len; part += 4 * MIB)
        CHECK(munmap(at + part + 17 * PAGE, MIB) == 0);
    for (int round = 0; round < 2; round++)
        for (size_t page = 0; page < len; page += PAGE) {
            size_t within = page % (4 * MIB);
            if (within >= 17 * PAGE && within < MIB + 17 * PAGE)
                CHECK(!can_read(at + page));
            else
                CHECK(((uint64_t *)at)[page / 8 + 3] == word_at(2, page / 8 + 3));
        }
    CHECK(munmap(at, len) == 0);
}

/* An unused range of addresses. */
static char *place(size_t len) {
    char *at = mmap(NULL, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static void to_named(size_t offset) {
    size_t len = 24 * MIB;
    char *at = map(len), *target = map(2 * len), *far = place(2 * len);
    fill(at, len, 3);
    fill(target, 2 * len, 4);
    /* Within managed memory, over an existing mapping, and growing. */
    CHECK(mremap(at, len, len + MIB, MREMAP_MAYMOVE | MREMAP_FIXED, target + offset) == target + offset);
    CHECK(holds(target + offset, len, 3) && is_zero(target + offset + len, MIB) && !can_read(at) && !can_read(at + len - 1));
    CHECK(holds(target, offset, 4) && can_write(target + offset + len + MIB));
    /* Out of managed memory, and shrinking. */
    CHECK(mremap(target + offset, len + MIB, len - MIB, MREMAP_MAYMOVE | MREMAP_FIXED, far + offset) == far + offset);
    CHECK(holds(far + offset, len - MIB, 3) && !can_read(target + offset) && !can_read(target + offset + len + MIB - 1));
    CHECK(!can_read(far + offset + len - MIB) && can_write(far + offset));
    CHECK(munmap(target, 2 * len) == 0 && munmap(far, 2 * len) == 0);
}

static void leaves_a_mapping(void) {
    size_t len = 24 * MIB;
    char *at = map(len);
    fill(at, len, 5);
    char *moved = mremap(at, len, len, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    CHECK(moved != MAP_FAILED && moved != at && holds(moved, len, 5) && is_zero(at, len));
    fill(at, len, 6);
    CHECK(holds(moved, len, 5));
    char *target = map(len);
    CHECK(mremap(at, len, len, MREMAP_MAYMOVE | MREMAP_DONTUNMAP | MREMAP_FIXED, target) == target);
    CHECK(holds(target, len, 6) && is_zero(at, len));
    CHECK(munmap(at, len) == 0 && munmap(moved, len) == 0 && munmap(target, len) == 0);
}

/* Protection, locks and guards move with the pages. */
static void keeps_protection(void) {
    size_t len = 4 * MIB;
    char *at = map(len), *wall = map(FOLIO);
    fill(at, len, 7);
    CHECK(mprotect(at, len, PROT_READ) == 0);
    char *moved = mremap(at, len, len + 2 * MIB, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED && holds(moved, len, 7) && is_zero(moved + len, 2 * MIB));
    CHECK(!can_write(moved) && !can_write(moved + len));
    CHECK(mprotect(moved, len + 2 * MIB, PROT_NONE) == 0);
    char *again = mremap(moved, len + 2 * MIB, len, MREMAP_MAYMOVE);
    CHECK(again == moved && !can_read(again) && !can_read(again + len - 1));
    CHECK(mprotect(again, len, PROT_READ | PROT_WRITE) == 0 && holds(again, len, 7));
    CHECK(munmap(again, len) == 0 && munmap(wall, FOLIO) == 0);
}

static void errors(void) {
    size_t len = 4 * MIB;
    char *at = map(len), *other = map(len);
    fill(at, len, 8);
    int moves = MREMAP_MAYMOVE | MREMAP_FIXED;
    CHECK(mremap(at, len, 0, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
    CHECK(mremap(at + 1, len, len, MREMAP_MAYMOVE) == MAP_FAILED && errno == EINVAL);
    CHECK(mremap(at, len, len, MREMAP_FIXED, other) == MAP_FAILED && errno == EINVAL);
    CHECK(mremap(at, len, len, moves, other + 1) == MAP_FAILED && errno == EINVAL);
    CHECK(mremap(at, len, len, moves, at + FOLIO) == MAP_FAILED && errno == EINVAL);
    CHECK(mremap(at, len, len, MREMAP_DONTUNMAP) == MAP_FAILED && errno == EINVAL);
    CHECK(mremap(at, len, 2 * len, MREMAP_MAYMOVE | MREMAP_DONTUNMAP) == MAP_FAILED && errno == EINVAL);
    CHECK(mremap(at, len, len, 64) == MAP_FAILED && errno == EINVAL);
    CHECK(munmap(at + FOLIO, PAGE) == 0);
    CHECK(mremap(at, len, 2 * len, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT);
    CHECK(mprotect(at + PAGE, PAGE, PROT_READ) == 0);
    CHECK(mremap(at, FOLIO, 2 * len, MREMAP_MAYMOVE) == MAP_FAILED && errno == EFAULT);
    CHECK(holds(at, FOLIO, 8));
    CHECK(munmap(at, len) == 0 && munmap(other, len) == 0);
}

/* Mapping files and shared memory over managed memory works or fails with an error. Nothing is lost. */
static void mapped_over(void) {
    size_t len = 8 * MIB;
    char *at = map(len);
    fill(at, len, 9);
    char *small = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(small != MAP_FAILED);
    fill(small, 16 * PAGE, 10);
    char *moved = mremap(small, 16 * PAGE, 16 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, at + 3 * MIB);
    if (moved == MAP_FAILED) {
        CHECK(errno == ENOMEM && holds(small, 16 * PAGE, 10) && holds(at, len, 9));
    } else {
        CHECK(moved == at + 3 * MIB && holds(moved, 16 * PAGE, 10) && holds(at, 3 * MIB, 9));
    }
    char *shared = mmap(at + 5 * MIB, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (shared == MAP_FAILED)
        CHECK(errno == ENOMEM && can_write(at + 5 * MIB));
    else
        CHECK(is_zero(shared, PAGE));
    char *more = map(8 * len);
    fill(more, 8 * len, 11);
    CHECK(holds(at, 3 * MIB, 9) && munmap(at, len) == 0);
    for (int round = 0; round < 3; round++) {
        at = map(len);
        CHECK(is_zero(at, len) && munmap(at, len) == 0); /* none of it is left at those addresses */
    }
    CHECK(holds(more, 8 * len, 11) && munmap(more, 8 * len) == 0);
}

/* Moves that the kernel refuses leave all as it is, even what is out of RAM. */
static void refused(void) {
    struct {
        uint32_t version;
        int pid;
    } header = {0x20080522, 0};
    struct {
        uint32_t effective, permitted, inheritable;
    } sets[2];
    CHECK(syscall(SYS_capget, &header, sets) == 0);
    sets[0].effective &= ~(1u << 17); /* CAP_SYS_RAWIO, which allows mappings at low addresses */
    CHECK(syscall(SYS_capset, &header, sets) == 0);
    size_t len = 8 * MIB;
    char *at = map(len), *other = map(32 * MIB);
    fill(at, len, 12);
    char *impossible[] = {NULL, (char *)((uintptr_t)1 << 47), (char *)((uintptr_t)1 << 55)};
    for (int round = 0; round < 3; round++) {
        int error = round ? EINVAL : EPERM, moves = MREMAP_MAYMOVE | MREMAP_FIXED;
        CHECK(mremap(at, len, len, moves, impossible[round]) == MAP_FAILED && errno == error);
        CHECK(mremap(at, len, len + MIB, moves, impossible[round]) == MAP_FAILED && errno == error);
        CHECK(mremap(at, len, len, moves | MREMAP_DONTUNMAP, impossible[round]) == MAP_FAILED && errno == error);
        CHECK(holds(at, len, 12));
        fill(other, 32 * MIB, 13); /* what was moved back can leave */
        CHECK(holds(at, len, 12) && holds(other, 32 * MIB, 13));
    }
    CHECK(mremap(at, len, (size_t)1 << 48, MREMAP_MAYMOVE) == MAP_FAILED);
    CHECK(mremap(at, len, len - MIB, MREMAP_MAYMOVE | MREMAP_FIXED, NULL) == MAP_FAILED && errno == EPERM);
    CHECK(holds(at, len - MIB, 12)); /* the kernel may have unmapped the rest */
    CHECK(munmap(at, len) == 0 && munmap(other, 32 * MIB) == 0);
}

/* Addresses from which memory was moved that was never touched are no longer managed: a fork does not miss them. */
static void untouched(void) {
    size_t len = 1024 * MIB;
    char *other = map(FOLIO), *at = map(len), *far = place(len);
    other[0] = at[0] = at[MIB] = 1;
    CHECK(mremap(at, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, far) == far);
    CHECK(other > at && far[0] == 1 && far[MIB] == 1 && far[len - 1] == 0);
    int status;
    pid_t child = fork();
    if (child == 0)
        _exit(other[0] == 1 ? 0 : 1);
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(munmap(far, len) == 0 && munmap(other, FOLIO) == 0);
}

static char *read_at;
static size_t read_len;
static volatile int is_over;

static void *read_it(void *argument) {
    size_t state = 88172645463325252ull;
    while (!is_over)
        (void)*(volatile char *)(read_at + next_random(&state) % read_len);
    return argument;
}

/* Content arrives whole at addresses that another thread reads meanwhile. */
static void read_meanwhile(void) {
    size_t len = 4 * MIB;
    pthread_t reader;
    read_len = len, read_at = map(len);
    CHECK(pthread_create(&reader, NULL, read_it, NULL) == 0);
    for (size_t round = 0; round < 60; round++) {
        size_t offset = round % 3 * 5 * PAGE;
        char *at = (char *)map(len + FOLIO) + offset;
        fill(at, len, round);
        CHECK(mremap(at, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, read_at) == read_at && holds(read_at, len, round));
        CHECK(munmap(at - offset, len + FOLIO) == 0);
    }
    is_over = 1;
    CHECK(pthread_join(reader, NULL) == 0 && munmap(read_at, len) == 0);
}

/* Locked memory is locked after it was moved or grew, and other memory is not. */
static void keeps_locks(void) {
    size_t len = 2 * FOLIO;
    char *at = map(len), *far = place(2 * len);
    fill(at, len, 14);
    CHECK(mlock(at, len) == 0);
    CHECK(mremap(at, len, len + FOLIO, MREMAP_MAYMOVE | MREMAP_FIXED, far) == far && holds(far, len, 14));
    CHECK(FAILS(madvise(far, PAGE, MADV_DONTNEED), EINVAL) && FAILS(madvise(far + len, PAGE, MADV_PAGEOUT), EINVAL));
    CHECK(munmap(far + len, FOLIO) == 0);
    CHECK(mremap(far, len, len + FOLIO, 0) == far && is_zero(far + len, FOLIO) && can_write(far + len));
    CHECK(FAILS(madvise(far + len, PAGE, MADV_DONTNEED), EINVAL));
    CHECK(munlock(far, len + FOLIO) == 0 && munmap(far, 2 * len) == 0);
}

int main(void) {
    catch_segv();
    holes();
    to_named(0);
    to_named(FOLIO);
    to_named(5 * PAGE);
    leaves_a_mapping();
    keeps_protection();
    errors();
    mapped_over();
    read_meanwhile();
    untouched();
    keeps_locks();
    refused();
    return 0;
}
