// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M 512M
// A program that limits its addresses or its data (RLIMIT_AS, RLIMIT_DATA) has as much room as without folioswap, reads
// what it set, and hands it on over fork and exec.
#define _GNU_SOURCE
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#define M (1ul << 20)
#define CHECK(x) do { if (!(x)) { printf("FAIL line %d: %s (errno %d)\n", __LINE__, #x, errno); exit(1); } } while (0)

static int fits(size_t len) {
    char *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        CHECK(errno == ENOMEM);
        return 0;
    }
    CHECK(munmap(memory, len) == 0);
    return 1;
}
static void has(int what, size_t limit, size_t room) {
    struct rlimit now;
    CHECK(getrlimit(what, &now) == 0 && now.rlim_cur == limit);
    CHECK(syscall(SYS_prlimit64, 0, what, NULL, &now) == 0 && now.rlim_cur == limit);
    CHECK(fits(room) && !fits(limit + 256 * M));
}
static void is_limited(int what, size_t limit) {
    has(what, limit, limit - limit / 4);
}
static void limit(int what, size_t soft, size_t hard) {
    struct rlimit new = {soft, hard}, old;
    CHECK(setrlimit(what, &new) == 0);
    is_limited(what, soft);
    CHECK(prlimit(getpid(), what, &new, &old) == 0 && old.rlim_cur == soft && old.rlim_max == hard);
    is_limited(what, soft);
    new.rlim_cur = hard == RLIM_INFINITY ? hard : hard + 1;
    new.rlim_max = hard == RLIM_INFINITY ? 0 : hard;
    errno = 0;
    CHECK(setrlimit(what, &new) == -1 && errno == EINVAL);
}
static void in_child(const char *self, int what, size_t limit, pid_t (*make)(void)) {
    char of[20], bytes[30];
    sprintf(of, "%d", what);
    sprintf(bytes, "%zu", limit);
    int status;
    pid_t child = make();
    if (child == 0) {
        execl("/does/not/exist", "no", NULL);
        execl(self, self, of, bytes, NULL);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    is_limited(what, limit);
}
static void spawned(void) {
    char *words[] = {"true", NULL};
    int status;
    pid_t child;
    CHECK((errno = posix_spawnp(&child, "true", NULL, NULL, words, words + 1)) == 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}
int main(int count, char **words) {
    if (count > 2) {
        // Under a limit from before its start, the engine takes a part of the room.
        size_t limit = strtoul(words[2], NULL, 10);
        has(atoi(words[1]), limit, limit / 8);
        return 0;
    }
    char *used = malloc(60 * M);
    memset(used, 3, 60 * M);
    static const int kinds[] = {RLIMIT_AS, RLIMIT_DATA};
    for (int at = 0; at < 2; at++) {
        int status;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            struct rlimit before, large = {3072 * M, RLIM_INFINITY};
            limit(kinds[at], 2048 * M, RLIM_INFINITY);
            limit(kinds[at], 1024 * M, 2048 * M);
            limit(kinds[at], 1536 * M, 2048 * M);
            pid_t other = fork();
            if (other == 0) {
                is_limited(kinds[at], 1536 * M);
                _exit(0);
            }
            CHECK(waitpid(other, &status, 0) == other && status == 0);
            if ((other = vfork()) == 0)
                _exit(setrlimit(kinds[at], &(struct rlimit){512 * M, 1024 * M}) != 0);
            CHECK(waitpid(other, &status, 0) == other && status == 0);
            is_limited(kinds[at], 1536 * M);
            in_child(words[0], kinds[at], 1536 * M, fork);
            in_child(words[0], kinds[at], 1536 * M, vfork);
            spawned();
            CHECK(setuid(65534) == 0 && setrlimit(kinds[at], &large) == -1 && errno == EPERM);
            CHECK(getrlimit(kinds[at], &before) == 0 && before.rlim_max == 2048 * M);
            for (size_t byte = 0; byte < 60 * M; byte += 4096)
                CHECK(used[byte] == 3);
            exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    puts("ok");
    return 0;
}
