/* madvise on managed memory: advice with guaranteed effects has the same effects as in the kernel. */
#include "access.h"
#include <sys/syscall.h>

#define PAGE 4096
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103

static char *region;
static size_t len = 64 * MIB;

static void press(void) {
    size_t state = 88172645463325252ull;
    for (int touch = 0; touch < 20000; touch++) {
        size_t at = 16 * MIB + next_random(&state) % (len - 16 * MIB);
        region[at] = region[at];
    }
}

static void locked(void) {
    fill(region, len, 1);
    CHECK(mlock(region + MIB, 3 * PAGE) == 0);
    CHECK(FAILS(madvise(region + MIB, PAGE, MADV_DONTNEED), EINVAL) && holds(region, len, 1));
    CHECK(madvise(region + MIB - PAGE, 3 * PAGE, MADV_DONTNEED_LOCKED) == 0);
    CHECK(is_zero(region + MIB - PAGE, 3 * PAGE) && ((uint64_t *)region)[(MIB + 2 * PAGE) / 8] == word_at(1, (MIB + 2 * PAGE) / 8));
    press();
    CHECK(is_zero(region + MIB - PAGE, 3 * PAGE));
    CHECK(munlock(region + MIB, 3 * PAGE) == 0);
    CHECK(madvise(region + 4 * MIB - PAGE, 3 * MIB, MADV_DONTNEED_LOCKED) == 0 && is_zero(region + 4 * MIB - PAGE, 3 * MIB));
}

static void refused(void) {
    fill(region, len, 2);
    CHECK(FAILS(madvise(region, PAGE, MADV_REMOVE), EINVAL) && FAILS(madvise(region, PAGE, 12345), EINVAL));
    CHECK(FAILS(madvise(region + 1, PAGE, MADV_DONTNEED), EINVAL) && madvise(region, 0, MADV_DONTNEED) == 0);
    CHECK(FAILS(madvise(region, 0, 12345), EINVAL));
    char *at = map(6 * MIB);
    fill(at, 6 * MIB, 3);
    CHECK(munmap(at + 3 * MIB, PAGE) == 0);
    CHECK(FAILS(madvise(at + 3 * MIB - PAGE, 3 * PAGE, MADV_DONTNEED), ENOMEM));
    CHECK(is_zero(at + 3 * MIB - PAGE, PAGE) && is_zero(at + 3 * MIB + PAGE, PAGE) && holds(at, 3 * MIB - PAGE, 3));
    CHECK(FAILS(madvise(at, 6 * MIB, MADV_WILLNEED), ENOMEM) && FAILS(madvise(at, 6 * MIB, MADV_NORMAL), ENOMEM));
    CHECK(FAILS(madvise(at, 6 * MIB, MADV_POPULATE_READ), ENOMEM));
    CHECK(munmap(at, 6 * MIB) == 0 && holds(region, len, 2));
}

static void populate(void) {
    CHECK(madvise(region + PAGE, 3 * MIB, MADV_POPULATE_READ) == 0 && madvise(region + PAGE, 3 * MIB, MADV_POPULATE_WRITE) == 0);
    CHECK(is_present(region + PAGE) && is_present(region + 3 * MIB));
    CHECK(mprotect(region + MIB, PAGE, PROT_READ) == 0);
    CHECK(FAILS(madvise(region, 2 * MIB, MADV_POPULATE_WRITE), EINVAL) && madvise(region, 2 * MIB, MADV_POPULATE_READ) == 0);
    CHECK(mprotect(region + MIB, PAGE, PROT_NONE) == 0);
    CHECK(FAILS(madvise(region, 2 * MIB, MADV_POPULATE_READ), EINVAL));
    CHECK(mprotect(region + MIB, PAGE, PROT_READ | PROT_WRITE) == 0 && holds(region, len, 2));
}

/* After MADV_FREE each page keeps its content or becomes zero as a whole, until it is written to. */
static void offered(void) {
    fill(region, len, 4);
    for (size_t at = 0; at < 16 * MIB; at += MIB)
        CHECK(madvise(region + at, 16 * PAGE, MADV_FREE) == 0);
    CHECK(madvise(region + 17 * MIB, 5 * MIB, MADV_FREE) == 0);
    for (size_t at = 0; at < 16 * MIB; at += 2 * MIB)
        memset(region + at, 5, PAGE);
    press();
    for (size_t at = 0; at < len; at += PAGE) {
        int is_offered = (at < 16 * MIB && at % MIB < 16 * PAGE) || (at >= 17 * MIB && at < 22 * MIB);
        int is_written = at < 16 * MIB && at % (2 * MIB) == 0;
        uint64_t *words = (uint64_t *)(region + at);
        if (is_written)
            CHECK(region[at] == 5 && memcmp(region + at, region + at + 1, PAGE - 1) == 0);
        else if (!is_offered || words[1])
            for (size_t i = 0; i < PAGE / 8; i++)
                CHECK(words[i] == word_at(4, at / 8 + i));
        else
            CHECK(is_zero(words, PAGE));
    }
}

static void guards(void) {
    fill(region, len, 6);
    if (madvise(region + MIB, PAGE, MADV_GUARD_INSTALL) < 0) {
        CHECK(errno == EINVAL);
        return; /* before Linux 6.13 */
    }
    CHECK(!can_read(region + MIB) && can_write(region + MIB + PAGE) && can_write(region + MIB - 1));
    CHECK(madvise(region + MIB, PAGE, MADV_GUARD_INSTALL) == 0); /* repeating it has no effect */
    CHECK(mprotect(region, 2 * MIB, PROT_READ) == 0 && !can_read(region + MIB) && !can_write(region));
    CHECK(mprotect(region, 2 * MIB, PROT_READ | PROT_WRITE) == 0 && !can_read(region + MIB) && can_write(region));
    CHECK(madvise(region, 2 * MIB, MADV_DONTNEED) == 0 && !can_read(region + MIB) && is_zero(region, MIB));
    CHECK(FAILS(madvise(region, 2 * MIB, MADV_POPULATE_READ), EFAULT));
    press();
    CHECK(madvise(region, 4 * MIB, MADV_GUARD_REMOVE) == 0 && is_zero(region, 2 * MIB) && can_write(region + MIB));
    CHECK(mlock(region, PAGE) == 0 && FAILS(madvise(region, PAGE, MADV_GUARD_INSTALL), EINVAL));
    CHECK(munlock(region, PAGE) == 0);
    /* Many guards, in memory that was never touched. */
    char *at = map(len);
    for (size_t block = 0; block < len; block += MIB)
        CHECK(madvise(at + block, 4 * PAGE, MADV_GUARD_INSTALL) == 0);
    for (size_t page = 0; page < len; page += PAGE)
        if (page % MIB >= 4 * PAGE)
            at[page] = 1;
    for (size_t block = 0; block < len; block += MIB)
        CHECK(!can_write(at + block + 3 * PAGE) && at[block + 4 * PAGE] == 1);
    CHECK(munmap(at, len) == 0);
    at = map(len);
    CHECK(is_zero(at, len) && munmap(at, len) == 0); /* the guards are gone with the mapping */
}

static int in_child(int (*body)(void)) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(body());
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

static int sees_wiped(void) {
    for (size_t at = 0; at < 6 * MIB; at += PAGE) {
        int is_wiped = at >= MIB && at < 5 * MIB;
        if (is_wiped && !is_zero(region + at, PAGE))
            return 1;
    }
    region[MIB] = 1;
    return 0;
}

static int sees_kept(void) { return region[MIB] == 0; }

static int lacks(void) {
    signal(SIGSEGV, SIG_DFL);
    return region[8 * MIB + PAGE] ? 2 : 3;
}

static void forks(void) {
    fill(region, len, 7);
    CHECK(madvise(region + MIB, 4 * MIB, MADV_WIPEONFORK) == 0);
    CHECK(in_child(sees_wiped) == 0);
    CHECK(holds(region, len, 7));
    CHECK(madvise(region + MIB, 4 * MIB, MADV_KEEPONFORK) == 0);
    memset(region + MIB, 9, PAGE); /* in RAM, and so in the child */
    CHECK(in_child(sees_kept) == 0);
    CHECK(madvise(region + 8 * MIB, 2 * PAGE, MADV_DONTFORK) == 0);
    region[8 * MIB + PAGE] = 1;
    int status = in_child(lacks);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    CHECK(madvise(region + 8 * MIB, 2 * PAGE, MADV_DOFORK) == 0);
    region[8 * MIB + PAGE] = 1;
    status = in_child(lacks);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 2);
}

/* process_madvise on this process, which Linux 6.13 and later permit for all advice. */
static void by_descriptor(void) {
    fill(region, len, 8);
    int self = syscall(SYS_pidfd_open, getpid(), 0);
    CHECK(self >= 0);
    struct iovec ranges[2] = {{region + MIB, 2 * MIB}, {region + 9 * MIB, PAGE}};
    ssize_t done = process_madvise(self, ranges, 2, MADV_DONTNEED, 0);
    if (done < 0) {
        CHECK(errno == EINVAL);
    } else {
        CHECK(done == 2 * (ssize_t)MIB + PAGE);
        CHECK(is_zero(region + MIB, 2 * MIB) && is_zero(region + 9 * MIB, PAGE) && holds(region, MIB, 8));
    }
    CHECK(FAILS(process_madvise(self, ranges, 2, 12345, 0), EINVAL) && FAILS(process_madvise(self, ranges, 2, MADV_COLD, 1), EINVAL));
    CHECK(FAILS(process_madvise(-1, ranges, 2, MADV_COLD, 0), EBADF));
    CHECK(process_madvise(self, ranges, 2, MADV_COLD, 0) == 2 * (ssize_t)MIB + PAGE);
    close(self);
}

int main(void) {
    catch_segv();
    region = map(len);
    locked();
    refused();
    populate();
    offered();
    guards();
    forks();
    by_descriptor();
    return 0;
}
