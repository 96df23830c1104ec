/* mprotect and mlock on parts of managed memory, most of which is not in RAM. What exceeds the budget fails with
   ENOMEM, which a kernel without a budget never returns. Those calls are counted, and their results are checked all
   the same. */
#include "access.h"
#include <sys/resource.h>
#include <sys/syscall.h>

#define PAGE 4096

static char *region;
static size_t len = 128 * MIB;

/* Accesses memory at random, except for one block. */
static void press(size_t but_for) {
    size_t state = 88172645463325252ull;
    for (int touch = 0; touch < 20000; touch++) {
        size_t at = next_random(&state) % len;
        if (at / FOLIO != but_for / FOLIO)
            region[at] = region[at];
    }
}

/* The first two pages of every fourth block become read-only while they are out of RAM, then one page more in each
   round. */
static void parts(void) {
    static char is_protected[16];
    size_t state = 88172645463325252ull;
    fill(region, len, 5);
    for (int round = 0; round < 2; round++) {
        for (size_t block = 0; block < len / (8 * MIB); block++) {
            char *at = region + block * 8 * MIB;
            int result = mprotect(at, 2 * PAGE, PROT_READ);
            CHECK(result == 0 || errno == ENOMEM);
            is_protected[block] |= result == 0;
        }
        for (int touch = 0; touch < 8000; touch++) {
            size_t at = next_random(&state) % (len / 8);
            CHECK(((uint64_t *)region)[at] == word_at(5, at));
            if (at * 8 % (8 * MIB) >= 2 * PAGE)
                ((uint64_t *)region)[at] = word_at(5, at);
        }
        for (size_t block = 0; block < len / (8 * MIB); block++)
            CHECK(can_write(region + block * 8 * MIB + PAGE) == !is_protected[block]);
        CHECK(holds(region, len, 5));
    }
    for (size_t block = 0; block < len / (8 * MIB); block++)
        CHECK(mprotect(region + block * 8 * MIB, 2 * PAGE, PROT_READ | PROT_WRITE) == 0);
    fill(region, len, 6);
    CHECK(holds(region, len, 6));
}

/* Protecting the same pages repeatedly needs no more room than once. */
static void again(void) {
    size_t protected = 6 * MIB;
    for (int round = 0; round < 20; round++) {
        CHECK(mprotect(region + 4 * MIB, protected, PROT_READ) == 0);
        CHECK(!can_write(region + 4 * MIB) && !can_write(region + 10 * MIB - 1) && can_write(region + 10 * MIB));
        CHECK(mprotect(region + 4 * MIB, protected, round % 2 ? PROT_NONE : PROT_READ) == 0);
        CHECK(can_read(region + 5 * MIB) == !(round % 2));
    }
    CHECK(mprotect(region, len, PROT_READ | PROT_WRITE) == 0 && holds(region, len, 6));
}

/* Memory without access that was never touched needs no room. */
static void reserved(void) {
    char *at = map(len);
    for (size_t block = 0; block < len; block += FOLIO)
        CHECK(mprotect(at + block, PAGE, PROT_NONE) == 0);
    for (int round = 0; round < 2; round++)
        for (size_t page = 0; page < len; page += PAGE)
            if (page % FOLIO)
                at[page] = 1;
    for (size_t block = 0; block < len; block += FOLIO)
        CHECK(!can_read(at + block) && at[block + PAGE] == 1);
    CHECK(mprotect(at, len, PROT_READ | PROT_WRITE) == 0);
    for (size_t block = 0; block < len; block += FOLIO)
        CHECK(is_zero(at + block, PAGE) && at[block + FOLIO - PAGE] == 1);
    CHECK(munmap(at, len) == 0);
    /* Reserved first, then used in parts. */
    at = map(len);
    CHECK(mprotect(at, len, PROT_NONE) == 0 && !can_read(at + 9 * MIB));
    for (size_t part = 0; part < len; part += 8 * MIB) {
        CHECK(mprotect(at + part, MIB + PAGE, PROT_READ | PROT_WRITE) == 0);
        fill(at + part, MIB + PAGE, part);
    }
    for (size_t part = 0; part < len; part += 8 * MIB) {
        CHECK(holds(at + part, MIB + PAGE, part) && !can_read(at + part + MIB + PAGE));
        CHECK(mprotect(at + part, MIB, PROT_NONE) == 0 && !can_read(at + part + MIB - 1) && can_write(at + part + MIB));
    }
    for (size_t part = 0; part < len; part += 8 * MIB)
        CHECK(mprotect(at + part, MIB, PROT_READ) == 0 && holds(at + part, MIB + PAGE, part) && !can_write(at + part) &&
              mprotect(at + part, MIB, PROT_NONE) == 0);
    CHECK(mmap(at, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at && !can_read(at));
    CHECK(mprotect(at + MIB, 2 * MIB, PROT_READ | PROT_WRITE) == 0 && is_zero(at + MIB, 2 * MIB));
    CHECK(munmap(at, len) == 0);
}

/* Unlocking a page leaves its neighbours locked. */
static void neighbours(void) {
    press(len);
    CHECK(mlock(region + 32 * MIB + PAGE, PAGE) == 0 && mlock(region + 32 * MIB + 8 * PAGE, 4 * PAGE) == 0);
    CHECK(munlock(region + 32 * MIB + 9 * PAGE, PAGE) == 0);
    for (int round = 0; round < 3; round++) {
        press(32 * MIB);
        CHECK(FAILS(madvise(region + 32 * MIB, FOLIO, MADV_PAGEOUT), EINVAL));
        CHECK(FAILS(madvise(region + 32 * MIB + PAGE, FOLIO - PAGE, MADV_DONTNEED), EINVAL));
        CHECK(is_present(region + 32 * MIB + PAGE));
        CHECK(is_present(region + 32 * MIB + 8 * PAGE) && is_present(region + 32 * MIB + 11 * PAGE));
    }
    CHECK(munlock(region, len) == 0 && holds(region, len, 6));
    /* Unlocked memory can be evicted. */
    for (size_t block = 0; block < len; block += FOLIO)
        CHECK(mlock(region + block + FOLIO / 2, PAGE) == 0 && munlock(region + block + FOLIO / 2, PAGE) == 0);
    CHECK(holds(region, len, 6));
}

/* Locking or protecting more than fits either succeeds or fails with ENOMEM. No process is killed. */
static void too_much(void) {
    for (size_t at = 0; at < len; at += 4 * MIB) {
        CHECK(mlock(region + at, 4 * MIB) == 0 || errno == ENOMEM);
        CHECK(mprotect(region + at + MIB, 2 * MIB, PROT_READ) == 0 || errno == ENOMEM);
    }
    CHECK(holds(region, len, 6));
    CHECK(mprotect(region, len, PROT_READ | PROT_WRITE) == 0 && munlock(region, len) == 0);
    fill(region, len, 7);
    CHECK(holds(region, len, 7));
}

/* Without CAP_IPC_LOCK. */
static void limits(void) {
    struct {
        uint32_t version;
        int pid;
    } header = {0x20080522, 0};
    struct {
        uint32_t effective, permitted, inheritable;
    } sets[2];
    CHECK(syscall(SYS_capget, &header, sets) == 0);
    sets[0].effective &= ~(1u << 14); /* CAP_IPC_LOCK */
    CHECK(syscall(SYS_capset, &header, sets) == 0);
    struct rlimit before, limit;
    CHECK(getrlimit(RLIMIT_MEMLOCK, &before) == 0);
    limit = (struct rlimit){64 * PAGE, before.rlim_max};
    CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    char *at = region + 64 * MIB - 32 * PAGE; /* in two blocks */
    CHECK(mlock(at, 64 * PAGE) == 0);
    CHECK(mlock(at, 64 * PAGE) == 0 && mlock2(at + PAGE, 8 * PAGE, 0) == 0);
    CHECK(FAILS(mlock(at + 64 * PAGE, 1), ENOMEM) && FAILS(mlock2(at - PAGE, PAGE, MLOCK_ONFAULT), ENOMEM));
    CHECK(munlock(at + 63 * PAGE, PAGE) == 0 && mlock2(at - PAGE, PAGE, MLOCK_ONFAULT) == 0);
    CHECK(FAILS(mlock(at - 2 * PAGE, PAGE), ENOMEM));
    CHECK(munlock(at - PAGE, 64 * PAGE) == 0);
    limit.rlim_cur = 0;
    CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    CHECK(FAILS(mlock(at, PAGE), EPERM));
    CHECK(setrlimit(RLIMIT_MEMLOCK, &before) == 0);
}

static void errors(void) {
    char *at = map(6 * MIB);
    memset(at, 1, 6 * MIB);
    CHECK(munmap(at + 3 * MIB, PAGE) == 0);
    CHECK(FAILS(mlock(at + 2 * MIB, 2 * MIB), ENOMEM) && FAILS(munlock(at + 2 * MIB, 2 * MIB), ENOMEM));
    CHECK(munlock(at, 3 * MIB) == 0 && munlock(at + 3 * MIB + PAGE, MIB) == 0);
    CHECK(FAILS(mprotect(at + 3 * MIB - PAGE, 2 * PAGE, PROT_READ), ENOMEM));
    CHECK(mprotect(at + 3 * MIB - PAGE, PAGE, PROT_READ | PROT_WRITE) == 0);
    CHECK(FAILS(mprotect(at + 1, PAGE, PROT_READ), EINVAL) && FAILS(mprotect(at, PAGE, 0x40), EINVAL));
    CHECK(FAILS(mprotect(at, PAGE, PROT_READ | PROT_GROWSDOWN), EINVAL));
    /* Every page has key 0, and a key that is not allocated is refused. */
    CHECK(pkey_mprotect(at, PAGE, PROT_READ, -1) == 0 && !can_write(at));
    CHECK(FAILS(pkey_mprotect(at, PAGE, PROT_READ | PROT_WRITE, 9), EINVAL) && !can_write(at));
    CHECK(pkey_mprotect(at, PAGE, PROT_READ | PROT_WRITE, -1) == 0 && can_write(at));
    int key = pkey_alloc(0, 0);
    if (key >= 0) {
        CHECK(pkey_mprotect(at, 3 * PAGE, PROT_READ | PROT_WRITE, key) == 0 && can_write(at));
        CHECK(madvise(at, PAGE, MADV_DONTNEED) == 0 && is_zero(at, PAGE) && at[PAGE] == 1);
        CHECK(mprotect(at, PAGE, PROT_READ) == 0 && !can_write(at));
        CHECK(pkey_mprotect(at, 3 * PAGE, PROT_READ | PROT_WRITE, 0) == 0 && pkey_free(key) == 0 && can_write(at));
    }
    CHECK(FAILS(mlock2(at, PAGE, 2), EINVAL) && FAILS(mlock(at, SIZE_MAX - 4 * PAGE), ENOMEM));
    CHECK(mprotect(at, 0, PROT_NONE) == 0 && mlock(at, 0) == 0 && munlock(at, 0) == 0);
    CHECK(can_write(at + 3 * MIB - 1) && can_write(at + 3 * MIB + PAGE) && !can_read(at + 3 * MIB));
    CHECK(munmap(at, 6 * MIB) == 0);
}

/* Part of a block is unmapped while a read-only page keeps the block in RAM as it is. The rest follows. */
static void in_pieces(void) {
    for (int round = 0; round < 8; round++) {
        char *at = map(FOLIO);
        memset(at, 1, FOLIO);
        CHECK(mprotect(at, PAGE, PROT_READ) == 0);
        CHECK(munmap(at + 100 * PAGE, 100 * PAGE) == 0);
        CHECK(at[100 * PAGE - 1] == 1 && !can_read(at + 100 * PAGE) && at[200 * PAGE] == 1);
        CHECK(munmap(at, 100 * PAGE) == 0 && munmap(at + 200 * PAGE, FOLIO - 200 * PAGE) == 0);
    }
}

/* A call on a part of read-only memory when the process has as many mappings as the kernel allows: it fails and changes
   nothing, or succeeds. */
static void no_more_mappings(void) {
    const size_t most = 70000;
    char *at = map(FOLIO);
    memset(at, 1, FOLIO);
    CHECK(mprotect(at + 64 * PAGE, 64 * PAGE, PROT_READ) == 0);
    char *other = mmap(NULL, most * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(other != MAP_FAILED);
    char *more[6]; /* mappings that do not become one with their neighbours */
    for (int one = 0; one < 6; one++)
        more[one] = mmap(NULL, PAGE, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    size_t page = 0;
    while (page < most && mprotect(other + page * PAGE, PAGE, PROT_READ) == 0)
        page += 2;
    if (page >= most)
        dprintf(2, "SKIP no_more_mappings: vm.max_map_count permits more than %zu\n", most);
    else
        CHECK(errno == ENOMEM);
    int result = munmap(at + 80 * PAGE, 8 * PAGE);
    CHECK(result == 0 || errno == ENOMEM);
    CHECK(result == 0 || at[80 * PAGE] == 1);
    char *placed = mmap(at + 100 * PAGE, 8 * PAGE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(placed == at + 100 * PAGE || errno == ENOMEM);
    CHECK(at[100 * PAGE] == (placed == MAP_FAILED));
    for (size_t inner = 200, one = 0; inner < 440; inner += 40, one++) {
        CHECK(munmap(at + inner * PAGE, PAGE) == 0 || (errno == ENOMEM && at[inner * PAGE] == 1));
        char *to = at + (inner + 10) * PAGE;
        placed = mmap(to, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        CHECK(placed == to || errno == ENOMEM);
        CHECK(*to == (placed == MAP_FAILED));
        char *shrinks = at + (inner + 20) * PAGE;
        CHECK(mremap(shrinks, 8 * PAGE, 4 * PAGE, 0) == shrinks || (errno == ENOMEM && shrinks[4 * PAGE] == 1));
        CHECK(shrinks[3 * PAGE] == 1);
        CHECK(munmap(more[one], PAGE) == 0);
    }
    CHECK(munmap(other, most * PAGE) == 0);
    CHECK(munmap(at + 80 * PAGE, 8 * PAGE) == 0 && !can_read(at + 80 * PAGE) && at[79 * PAGE] == 1);
    CHECK(munmap(at, FOLIO) == 0);
}

/* Two threads make the same reserved memory accessible at once, and write to it. */
static char *shared_at;
static pthread_barrier_t barrier;

static void *commit(void *argument) {
    for (uintptr_t round = 0; round < 60; round++) {
        pthread_barrier_wait(&barrier);
        char *at = shared_at;
        size_t own = (uintptr_t)argument * PAGE;
        if (round % 2)
            (void)*(volatile char *)(at + own);
        CHECK(mprotect(at, 8 * MIB, PROT_READ | PROT_WRITE) == 0);
        for (size_t page = own; page < 8 * MIB; page += 64 * PAGE)
            at[page] = 1;
        pthread_barrier_wait(&barrier);
        for (size_t page = own; page < 8 * MIB; page += 64 * PAGE)
            CHECK(at[page] == 1);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

static void committed_twice(void) {
    pthread_t threads[2];
    CHECK(pthread_barrier_init(&barrier, NULL, 3) == 0);
    for (uintptr_t index = 0; index < 2; index++)
        CHECK(pthread_create(&threads[index], NULL, commit, (void *)index) == 0);
    for (int round = 0; round < 60; round++) {
        int access = round % 2 ? PROT_READ : PROT_NONE;
        shared_at = mmap(NULL, 8 * MIB, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(shared_at != MAP_FAILED);
        for (int wait = 0; wait < 3; wait++)
            pthread_barrier_wait(&barrier);
        CHECK(munmap(shared_at, 8 * MIB) == 0);
    }
    for (int index = 0; index < 2; index++)
        CHECK(pthread_join(threads[index], NULL) == 0);
}

/* Memory that took the place of reserved memory keeps its content. */
static void no_longer_reserved(void) {
    int plain = PROT_READ | PROT_WRITE, fixed = MREMAP_MAYMOVE | MREMAP_FIXED;
    char *at = mmap(NULL, 8 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *small = map(MIB);
    CHECK(at != MAP_FAILED);
    fill(small, MIB, 9);
    CHECK(mremap(small, MIB, MIB, fixed, at + MIB) == at + MIB && holds(at + MIB, MIB, 9));
    CHECK(mprotect(at + MIB, MIB, PROT_READ) == 0 && mprotect(at + MIB, MIB, plain) == 0 && holds(at + MIB, MIB, 9));
    CHECK(mremap(at + 4 * MIB, 4 * MIB, MIB, MREMAP_MAYMOVE) == at + 4 * MIB);
    small = mmap(at + 6 * MIB, MIB, plain, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); /* not fixed, but free */
    CHECK(small != MAP_FAILED);
    fill(small, MIB, 10);
    CHECK(mprotect(small, MIB, PROT_READ) == 0 && mprotect(small, MIB, plain) == 0 && holds(small, MIB, 10));
    int key = pkey_alloc(0, 0);
    if (key >= 0) {
        CHECK(pkey_mprotect(at + 2 * MIB, MIB, plain, key) == 0);
        fill(at + 2 * MIB, MIB, 11);
        CHECK(mprotect(at + 2 * MIB, MIB, plain) == 0 && holds(at + 2 * MIB, MIB, 11) && pkey_free(key) == 0);
    }
    CHECK(munmap(small, MIB) == 0 && munmap(at, 5 * MIB) == 0);
}

/* Reserved memory that is locked stays as it is: it cannot be managed, and children get it. */
static void reserved_and_locked(void) {
    char *at = mmap(NULL, 4 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED && mlock2(at, 4 * MIB, MLOCK_ONFAULT) == 0);
    CHECK(mprotect(at, 4 * MIB, PROT_READ | PROT_WRITE) == 0);
    fill(at, 4 * MIB, 12);
    int status;
    pid_t child = fork();
    if (child == 0)
        _exit(holds(at, 4 * MIB, 12) ? 0 : 1);
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(holds(at, 4 * MIB, 12) && munmap(at, 4 * MIB) == 0);
}

int main(void) {
    catch_segv();
    region = map(len);
    parts();
    again();
    reserved();
    neighbours();
    too_much();
    limits();
    errors();
    in_pieces();
    committed_twice();
    no_longer_reserved();
    reserved_and_locked();
    no_more_mappings();
    return 0;
}
