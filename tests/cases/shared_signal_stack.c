// BUDGETS: 24M 96M
// EXPECT: exit 0, last line "done"
// LIMIT_S: 60
// All threads of varnishd have set the same signal stack: only the one that ends the process is ever to run on it.
// Faults of several threads at once must not meet there. A handler for that stack runs on it, and cannot unset it.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CHECK(cond) do { if (!(cond)) { printf("line %d: %s\n", __LINE__, #cond); fflush(stdout); _Exit(1); } } while (0)
enum { NR_THREADS = 8, NR_ROUNDS = 4, PAGE = 4096, STACK = 80 << 10 };

static const size_t each = 24 << 20;
static char *stack;
static char *volatile handler_at;

static void handler(int signal) {
    char here;
    stack_t none = {.ss_flags = SS_DISABLE};
    (void)signal;
    handler_at = &here;
    CHECK(sigaltstack(&none, NULL) == -1 && errno == EPERM);
}

static void use_stack(void) {
    stack_t wanted = {.ss_sp = stack, .ss_size = STACK}, known;
    CHECK(sigaltstack(&wanted, NULL) == 0);
    CHECK(sigaltstack(NULL, &known) == 0);
    CHECK(known.ss_sp == stack && known.ss_size == STACK && known.ss_flags == 0);
}

static void *work(void *argument) {
    size_t number = (size_t)argument;
    if (number > 0) use_stack();
    unsigned char *bytes = mmap(NULL, each, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(bytes != MAP_FAILED);
    for (size_t round = 0; round < NR_ROUNDS; round++)
        for (size_t at = 0; at < each; at += PAGE) {
            size_t *word = (size_t *)(bytes + at);
            CHECK(*word == (round == 0 ? 0 : at + number + round - 1));
            *word = at + number + round;
        }
    return NULL;
}

int main(void) {
    stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    use_stack();
    CHECK(raise(SIGUSR1) == 0);
    CHECK(handler_at > stack && handler_at < stack + STACK);
    pthread_t threads[NR_THREADS];
    for (size_t number = 1; number < NR_THREADS; number++)
        CHECK(pthread_create(&threads[number], NULL, work, (void *)number) == 0);
    work(NULL); /* on the stack that it has set already */
    for (int number = 1; number < NR_THREADS; number++)
        CHECK(pthread_join(threads[number], NULL) == 0);
    puts("done");
    return 0;
}
