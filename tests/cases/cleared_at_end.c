// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 60
// The word that the kernel clears at the end of a thread, or of a child in the same memory, has left RAM by then, and
// so has the child's stack, from malloc or mmap.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define NR_ROUNDS 4
#define OTHER_BYTES (64 * MIB)
#define STACK_BYTES (256ul << 10)

static char *other;

static void check(int is_right, const char *what) {
    if (is_right) return;
    printf("wrong: %s\n", what);
    fflush(stdout);
    _exit(1);
}

static void *map(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(at != MAP_FAILED, "mmap");
    return at;
}

static int use_other_memory(void *argument) {
    size_t sum = 0;
    for (int round = 0; round < 2; round++)
        for (size_t at = 0; at < OTHER_BYTES; at += 4096) sum += *(volatile size_t *)(other + at);
    return argument != NULL || sum != 2 * (OTHER_BYTES / 4096) ? 3 : 0;
}

static int use_deep_stack(void *argument) {
    char deep[STACK_BYTES / 2];
    memset(deep, 1, sizeof deep);
    int result = use_other_memory(argument);
    for (size_t at = 0; at < sizeof deep; at++)
        if (((volatile char *)deep)[at] != 1) result = 4;
    return result;
}

/* Waits for the word, as who joins a thread does. */
static void wait_until_zero(int *word) {
    struct timespec limit = {10, 0};
    for (int value; (value = __atomic_load_n(word, __ATOMIC_SEQ_CST));)
        check(syscall(SYS_futex, word, FUTEX_WAIT, value, &limit, 0, 0) == 0 || errno != ETIMEDOUT, "it is cleared");
}

static void *in_a_thread(void *word) {
    *(int *)word = (int)syscall(SYS_gettid);
    syscall(SYS_set_tid_address, word);
    check(use_other_memory(NULL) == 0, "memory of a thread");
    return NULL;
}

static void threads(void) {
    for (int round = 0; round < NR_ROUNDS; round++) {
        int *word = (int *)((char *)map(4 * MIB) + round * 100000);
        *word = 77;
        pthread_t thread;
        check(pthread_create(&thread, NULL, in_a_thread, word) == 0 && pthread_detach(thread) == 0, "a thread");
        // Every other time nobody looks at the word meanwhile.
        if (round % 2) usleep(500000);
        wait_until_zero(word);
    }
}

static void children(int has_malloc, int (*work)(void *)) {
    for (int round = 0; round < NR_ROUNDS; round++) {
        int *word = (int *)((char *)map(4 * MIB) + round * 100000);
        char *stack = has_malloc ? malloc(STACK_BYTES) : map(STACK_BYTES);
        *word = 1;
        use_other_memory(NULL);
        int flags = CLONE_VM | CLONE_CHILD_CLEARTID | SIGCHLD, status;
        int child = clone(work, stack + STACK_BYTES, flags, NULL, NULL, NULL, word);
        check(child > 0 && waitpid(child, &status, 0) == child, "waitpid");
        if (status) printf("status %x\n", status);
        check(status == 0, "a child in the same memory");
        check(*word == 0, "its word is cleared");
    }
}

/* A child may end by a call of its own, and there may be many at a time. */
static int ends_at_once(void *argument) {
    _exit(argument == NULL ? 7 : 8);
}

static void many(void) {
    int ids[50];
    for (int round = 0; round < 10; round++) {
        for (int at = 0; at < 50; at++)
            ids[at] = clone(ends_at_once, (char *)map(STACK_BYTES) + STACK_BYTES, CLONE_VM | SIGCHLD, NULL);
        for (int at = 0, status; at < 50; at++) {
            check(ids[at] > 0 && waitpid(ids[at], &status, 0) == ids[at], "waitpid of many");
            check(WIFEXITED(status) && WEXITSTATUS(status) == 7, "a status of many");
        }
    }
}

int main(void) {
    other = map(OTHER_BYTES);
    for (size_t at = 0; at < OTHER_BYTES; at += 4096) *(size_t *)(other + at) = 1;
    threads();
    children(0, use_other_memory);
    children(1, use_other_memory);
    children(0, use_deep_stack);
    many();
    puts("ok");
    return 0;
}
