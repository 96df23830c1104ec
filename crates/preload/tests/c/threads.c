/* Threads that fault at the same time, threads with managed stacks, and coroutines whose stacks are swapped out. */
#include "check.h"
#include <ucontext.h>

#define THREADS 32
static char *shared;
static size_t shared_len = 64 * MIB;

static void *reader(void *argument) {
    size_t start = (uintptr_t)argument * (shared_len / THREADS) / 8;
    for (size_t n = 0; n < shared_len / 8; n += 509) {
        size_t i = (start + n) % (shared_len / 8);
        CHECK(((uint64_t *)shared)[i] == word_at(7, i));
    }
    return NULL;
}

static uint64_t deep(int depth, uint64_t seed) {
    volatile uint64_t words[256];
    for (int i = 0; i < 256; i++)
        words[i] = seed + i;
    uint64_t below = depth ? deep(depth - 1, seed + 1) : 0;
    for (int i = 0; i < 256; i++)
        CHECK(words[i] == seed + i);
    return below + seed;
}

static void *on_own_stack(void *argument) {
    uint64_t seed = (uintptr_t)argument;
    for (int round = 0; round < 20; round++) {
        CHECK(deep(100, seed) > 0);
        for (size_t i = round; i < shared_len / 8; i += 65536)
            CHECK(((uint64_t *)shared)[i] == word_at(7, i));
    }
    return argument;
}

static ucontext_t main_context, context;
static char *stack;
static void coroutine(void) {
    for (int i = 0; i < 6; i++) {
        CHECK(deep(20, i + 1) > 0);
        swapcontext(&context, &main_context);
    }
}

static void coroutines(void) {
    stack = map(FOLIO);
    CHECK(getcontext(&context) == 0);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = FOLIO;
    context.uc_link = &main_context;
    makecontext(&context, coroutine, 0);
    for (int i = 0; i < 6; i++) {
        swapcontext(&main_context, &context);
        send_out(stack, FOLIO); /* its next step faults on the stack itself */
    }
}

int main(void) {
    shared = map(shared_len);
    fill(shared, shared_len, 7);
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, reader, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);

    for (int round = 0; round < 3; round++) {
        void *stacks[2];
        pthread_t own[2];
        for (uintptr_t i = 0; i < 2; i++) {
            pthread_attr_t attributes;
            CHECK(pthread_attr_init(&attributes) == 0);
            CHECK(posix_memalign(&stacks[i], 4096, MIB) == 0);
            CHECK(pthread_attr_setstack(&attributes, stacks[i], MIB) == 0);
            CHECK(pthread_create(&own[i], &attributes, on_own_stack, (void *)(i + 1)) == 0);
        }
        for (uintptr_t i = 0; i < 2; i++) {
            void *value;
            CHECK(pthread_join(own[i], &value) == 0 && value == (void *)(i + 1));
            free(stacks[i]);
        }
    }
    coroutines();
    for (int i = 0; i < 300; i++) { /* short-lived threads leave nothing behind */
        pthread_t one;
        CHECK(pthread_create(&one, NULL, reader, (void *)(uintptr_t)i) == 0);
        CHECK(i % 50 ? pthread_detach(one) == 0 : pthread_join(one, NULL) == 0);
        if (i > 8)
            i += 40;
    }
    return 0;
}
