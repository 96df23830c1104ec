// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// A thread that sleeps on a coroutine's stack is cancelled when that has left RAM.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#define SIZE (64ul << 20)
#define STACK (256ul << 10)

static ucontext_t back, coroutine;
static char *stack;
static int ends[2];
static volatile int is_up;

static void sleep_there(void) {
    char byte;
    is_up = 1;
    if (read(ends[0], &byte, 1) == 1) puts("a byte");
}

static void *run(void *argument) {
    getcontext(&coroutine);
    coroutine.uc_stack.ss_sp = stack;
    coroutine.uc_stack.ss_size = STACK;
    coroutine.uc_link = &back;
    makecontext(&coroutine, sleep_there, 0);
    swapcontext(&back, &coroutine);
    return argument;
}

int main(void) {
    char *memory = malloc(SIZE);
    memset(memory, 1, SIZE);
    stack = memory + (8 << 20);
    if (pipe(ends) != 0) return 2;
    for (int round = 0; round < 3; round++) {
        pthread_t thread;
        void *result = NULL;
        is_up = 0;
        pthread_create(&thread, NULL, run, NULL);
        while (!is_up) usleep(1000);
        usleep(50000);
        for (int pass = 0; pass < 3; pass++)
            for (size_t at = 12 << 20; at < SIZE; at += 64) memory[at] = pass;
        if (pthread_cancel(thread) != 0) return 3;
        pthread_join(thread, &result);
        if (result != PTHREAD_CANCELED) return 4;
    }
    puts("ok");
    return 0;
}
