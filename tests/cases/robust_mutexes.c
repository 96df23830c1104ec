// EXPECT: exit 0, last line "ok"
// BUDGETS: 16M
// LIMIT_S: 60
// Threads and processes end while they hold robust mutexes in memory that has left RAM: each next owner is told.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define NR_MUTEXES 40
#define DISTANCE (2 * MIB)
#define OTHER_BYTES (32 * MIB)

static char *memory, *other;
static pthread_mutex_t *shared;
static int kind;

static void check(int is_right, const char *what) {
    if (is_right) return;
    printf("wrong: %s\n", what);
    fflush(stdout);
    _exit(1);
}

static void *map(size_t bytes, int flags) {
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | flags, -1, 0);
    check(at != MAP_FAILED, "mmap");
    return at;
}

static pthread_mutex_t *mutex(int number) { return (pthread_mutex_t *)(memory + number * DISTANCE + 4096); }

static void make(pthread_mutex_t *at, int protocol, int sharing) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutexattr_setprotocol(&attributes, protocol);
    pthread_mutexattr_setpshared(&attributes, sharing);
    check(pthread_mutex_init(at, &attributes) == 0, "pthread_mutex_init");
}

static void use_other_memory(void) {
    for (int round = 0; round < 2; round++)
        for (size_t at = 0; at < OTHER_BYTES; at += 512) *(size_t *)(other + at) = at * 3 + round;
    madvise(memory, NR_MUTEXES * DISTANCE, MADV_PAGEOUT);
}

static void *hold_and_end(void *nothing) {
    for (int number = 0; number < NR_MUTEXES; number++) check(pthread_mutex_lock(mutex(number)) == 0, "lock");
    use_other_memory();
    if (kind == 1) pthread_exit(nothing);
    if (kind == 2) syscall(SYS_exit, 0);
    return nothing;
}

static int lock_within_2_s(pthread_mutex_t *at) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 2;
    return pthread_mutex_timedlock(at, &end);
}

static void *wait_for_first(void *nothing) {
    check(pthread_mutex_lock(mutex(0)) == EOWNERDEAD, "a waiting thread is woken and told");
    check(pthread_mutex_consistent(mutex(0)) == 0 && pthread_mutex_unlock(mutex(0)) == 0, "unlock");
    return nothing;
}

static void threads(int protocol) {
    pthread_t holder, waiter;
    memset(memory, 0, NR_MUTEXES * DISTANCE);
    for (int number = 0; number < NR_MUTEXES; number++) make(mutex(number), protocol, PTHREAD_PROCESS_PRIVATE);
    check(pthread_create(&holder, NULL, hold_and_end, NULL) == 0, "pthread_create");
    if (kind != 2) {
        check(pthread_join(holder, NULL) == 0, "pthread_join");
    } else {
        while (pthread_tryjoin_np(holder, NULL) == EBUSY) usleep(1000);
    }
    for (int number = 0; number < NR_MUTEXES; number++) {
        check(lock_within_2_s(mutex(number)) == EOWNERDEAD, "the next owner is told");
        check(pthread_mutex_consistent(mutex(number)) == 0 && pthread_mutex_unlock(mutex(number)) == 0, "unlock");
        check(pthread_mutex_lock(mutex(number)) == 0 && pthread_mutex_unlock(mutex(number)) == 0, "as new");
    }
    if (protocol == PTHREAD_PRIO_INHERIT) return; // for a waiter the kernel needs the word when it wakes it
    check(pthread_create(&holder, NULL, hold_and_end, NULL) == 0, "pthread_create");
    while (pthread_mutex_trylock(mutex(NR_MUTEXES - 1)) == 0) pthread_mutex_unlock(mutex(NR_MUTEXES - 1));
    check(pthread_create(&waiter, NULL, wait_for_first, NULL) == 0, "pthread_create");
    pthread_join(waiter, NULL);
    while (pthread_tryjoin_np(holder, NULL) == EBUSY) usleep(1000);
}

// A process ends, or executes another program, in one of the ways. Its list names private mutexes before a shared one.
static void processes(const char *self, int way) {
    make(shared, PTHREAD_PRIO_NONE, PTHREAD_PROCESS_SHARED);
    pid_t child = fork();
    if (child == 0) {
        char *arguments[] = { (char *)self, "executed", NULL };
        check(pthread_mutex_lock(shared) == 0, "lock");
        for (int number = 0; number < NR_MUTEXES; number++) {
            make(mutex(number), PTHREAD_PRIO_NONE, PTHREAD_PROCESS_PRIVATE);
            check(pthread_mutex_lock(mutex(number)) == 0, "lock");
        }
        use_other_memory();
        if (way == 0) exit(0);
        if (way == 1) _exit(0);
        if (way == 2) syscall(SYS_exit_group, 0);
        if (way == 3) quick_exit(0);
        if (way == 5) { // an attempt to execute has put the shared one first, where the kernel finds it
            execv("/nonexistent", arguments);
            use_other_memory();
            raise(SIGKILL);
        }
        execv(self, arguments);
        _exit(1);
    }
    int status;
    check(waitpid(child, &status, 0) == child && status == (way == 5 ? SIGKILL : 0), "the child ends well");
    check(lock_within_2_s(shared) == EOWNERDEAD, "another process is told");
    check(pthread_mutex_consistent(shared) == 0 && pthread_mutex_unlock(shared) == 0, "unlock");
}

int main(int count, char **words) {
    if (count > 1) return 0;
    memory = map(NR_MUTEXES * DISTANCE, MAP_PRIVATE);
    other = map(OTHER_BYTES, MAP_PRIVATE);
    shared = map(4096, MAP_SHARED);
    use_other_memory();
    for (kind = 0; kind < 3; kind++) threads(PTHREAD_PRIO_NONE);
    kind = 0;
    threads(PTHREAD_PRIO_INHERIT);
    for (int way = 0; way < 6; way++) processes(words[0], way);
    puts("ok");
    return 0;
}
