// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// What a program has before its memory runs short is as it was afterwards, and is limited too.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#define K 1024ul
#define M (K * K)
#define P 4096ul
#define CHECK(x) do { if (!(x)) { printf("FAIL line %d: %s (errno %d)\n", __LINE__, #x, errno); exit(1); } } while (0)
enum { MOST = 400 };
static struct { char *at; size_t len, step; int number, protection; } all[MOST];
static int count;
static char array[3 * M];
static volatile int handled;
static void handle(int signal) { handled += signal == SIGUSR1; }
static void write_all(int nr) {
    for (size_t i = 0; i < all[nr].len; i += all[nr].step)
        *(int *)(all[nr].at + i) = all[nr].number + i;
}
static int is_right(int nr) {
    if (all[nr].protection == PROT_NONE)
        mprotect(all[nr].at, all[nr].len, PROT_READ);
    int right = 1;
    for (size_t i = 0; i < all[nr].len; i += P)
        right &= *(int *)(all[nr].at + i) == (i % all[nr].step ? 0 : all[nr].number + (int)i);
    if (all[nr].protection == PROT_NONE)
        mprotect(all[nr].at, all[nr].len, PROT_NONE);
    return right;
}
static int note(char *at, size_t len, size_t step) {
    CHECK(count < MOST);
    all[count].at = at, all[count].len = len, all[count].step = step, all[count].number = count * 1000003;
    all[count].protection = PROT_READ | PROT_WRITE;
    write_all(count);
    return count++;
}
static char *map(size_t len, int protection) {
    char *at = mmap(0, len, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}
static int mapped(size_t len, size_t step) { return note(map(len, PROT_READ | PROT_WRITE), len, step); }
static void protect(int nr, int protection) {
    all[nr].protection = protection;
    CHECK(mprotect(all[nr].at, all[nr].len, protection) == 0);
}
static void all_right(const char *when) {
    for (int nr = 0; nr < count; nr++)
        if (!is_right(nr)) {
            printf("FAIL %s: memory %d\n", when, nr);
            exit(1);
        }
}
static void *nothing(void *argument) { return argument; }
static void ends_well(pid_t child, const char *what) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    if (status != 0) {
        printf("FAIL %s: status %x\n", what, status);
        exit(1);
    }
}
static void grow(size_t budget) {
    /* In small folios first, then in large ones. */
    size_t len = 2 * budget, nr = budget / (60 * K);
    char **small = malloc(nr * sizeof *small);
    for (size_t i = 0; i < nr; i++)
        memset(small[i] = map(60 * K, PROT_READ | PROT_WRITE), i, 60 * K);
    for (size_t i = 0; i < nr; i++)
        for (size_t at = 0; at < 60 * K; at += P)
            CHECK(small[i][at] == (char)i);
    for (size_t i = 0; i < nr; i++)
        munmap(small[i], 60 * K);
    free(small);
    char *more = map(len, PROT_READ | PROT_WRITE);
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < len; i += P)
            more[i]++;
    for (size_t i = 0; i < len; i += P)
        CHECK(more[i] == 2);
    munmap(more, len);
    int before = handled;
    CHECK(raise(SIGUSR1) == 0 && handled == before + 1);
}
static void check_in_child(const char *when, size_t budget, int starts_thread) {
    pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        if (starts_thread)
            CHECK(pthread_create(&thread, 0, nothing, 0) == 0 && pthread_join(thread, 0) == 0);
        grow(budget);
        all_right(when);
        fflush(0);
        _exit(0);
    }
    ends_well(child, when);
}
int main(void) {
    const char *settings = getenv("FOLIOSWAP_RUN");
    size_t budget = settings && strstr(settings, "memory=") ? strtoul(strstr(settings, "memory=") + 7, 0, 10) : 48 * M;
    mapped(5 * M + 3 * P, P);
    mapped(2 * M, P);
    mapped(3 * M, 7 * P);
    for (int i = 0; i < 100; i++)
        mapped((1 + i % 40) * P, (1 + i % 3) * P);
    protect(mapped(300 * K, P), PROT_READ);
    protect(mapped(300 * K, P), PROT_NONE);
    note(array + P - (size_t)array % P, 2 * M, P);
    stack_t stack = {.ss_sp = array + 2 * M + 2 * P, .ss_size = 128 * K};
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK};
    CHECK(sigaltstack(&stack, 0) == 0 && sigaction(SIGUSR1, &action, 0) == 0);
    char *end = sbrk(0);
    CHECK(sbrk(500 * K) == end);
    note(end + P - (size_t)end % P, 400 * K, P);
    for (int i = 0; i < 60; i++) {
        char *block = malloc((i + 3) * 3 * K);
        CHECK(block);
        memset(block, 0, (i + 3) * 3 * K);
        note(block + 16, (i + 3) * 3 * K - 32, P);
    }
    int locked = mapped(64 * K, P);
    mlock(all[locked].at, all[locked].len);
    int kept_from = mapped(256 * K, P), wiped = mapped(256 * K, P), small = mapped(2 * M, P);
    CHECK(madvise(all[kept_from].at, all[kept_from].len, MADV_DONTFORK) == 0);
    CHECK(madvise(all[wiped].at, all[wiped].len, MADV_WIPEONFORK) == 0);
    madvise(all[small].at, all[small].len, MADV_NOHUGEPAGE);
    /* Reserved, and opened in parts. */
    char *reserve = map(8 * M, PROT_NONE);
    CHECK(madvise(reserve, 8 * M, MADV_DONTFORK) == 0 && madvise(reserve, 8 * M, MADV_DOFORK) == 0);
    CHECK(mprotect(reserve + 3 * P, M, PROT_READ | PROT_WRITE) == 0);
    note(reserve + 3 * P, M, P);
    /* Moved. */
    char *from = map(M, PROT_READ | PROT_WRITE), *to = map(M + 5 * P, PROT_NONE);
    from[0] = 1;
    CHECK(mremap(from, M, M, MREMAP_MAYMOVE | MREMAP_FIXED, to + 5 * P) == to + 5 * P && to[5 * P] == 1);
    note(to + 5 * P, M, P);
    /* Shared with a child that lives on. */
    int go[2];
    CHECK(pipe(go) == 0);
    fflush(0);
    pid_t sharing = fork();
    if (sharing == 0) {
        char byte;
        close(go[1]);
        CHECK(read(go[0], &byte, 1) == 0);
        int left_out = 0;
        for (int nr = 0; nr < count; nr++)
            if (nr == kept_from || nr == wiped)
                left_out++;
            else if (!is_right(nr)) {
                printf("FAIL in the sharing child: memory %d\n", nr);
                exit(1);
            }
        for (size_t i = 0; i < all[wiped].len; i += P)
            CHECK(*(int *)(all[wiped].at + i) == 0);
        fflush(0);
        _exit(left_out != 2);
    }
    CHECK(sharing > 0);
    all_right("before");
    CHECK(madvise(all[kept_from].at, all[kept_from].len, MADV_DOFORK) == 0);
    CHECK(madvise(all[wiped].at, all[wiped].len, MADV_KEEPONFORK) == 0);
    check_in_child("in a child that grows", budget, 0);
    check_in_child("in a child that starts a thread", budget, 1);
    /* In a pipe. */
    int ends[2];
    static char got[64 * K];
    char *sent = map(M, PROT_READ | PROT_WRITE);
    memset(sent, 77, M);
    struct iovec part = {sent + 10 * P, 60 * K};
    CHECK(pipe(ends) == 0 && vmsplice(ends[1], &part, 1, 0) == 60 * K);
    grow(budget);
    all_right("grown");
    CHECK(read(ends[0], got, 60 * K) == 60 * K);
    for (size_t i = 0; i < 60 * K; i++)
        CHECK(got[i] == 77);
    for (int nr = 0; nr < count; nr++) {
        if (all[nr].protection != (PROT_READ | PROT_WRITE))
            protect(nr, PROT_READ | PROT_WRITE);
        all[nr].number++;
        write_all(nr);
    }
    pthread_t thread;
    CHECK(pthread_create(&thread, 0, nothing, 0) == 0 && pthread_join(thread, 0) == 0);
    grow(budget);
    all_right("written again");
    check_in_child("in a child", budget, 1);
    close(go[1]), close(go[0]);
    ends_well(sharing, "the sharing child");
    puts("ok");
    return 0;
}
