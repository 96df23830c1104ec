/* Threads that are cancelled while their faults are resolved. A deferred cancellation takes effect only where the
   program calls a cancellation point. An asynchronous one takes effect between two of the program's instructions,
   never in the middle of a fault. Either way no lock stays held: other threads can access all memory afterwards, and
   fork. */
#include "check.h"
#include <stdatomic.h>

#define LEN (64 * MIB)
static char *shared;
static atomic_size_t touches;
static int through, cleaned;

static void clean_up(void *argument) {
    (void)argument;
    cleaned++;
}

static size_t places[] = {0, 8, 4096 + 16, FOLIO / 2, FOLIO - 8};

/* Reads some words, and writes some back. Calls nothing. */
static int pass_over(uint64_t step) {
    int good = 1;
    for (size_t folio = 0; folio < LEN; folio += FOLIO)
        for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
            volatile uint64_t *word = (uint64_t *)(shared + folio + places[i]);
            good &= *word == word_at(3, (folio + places[i]) / 8);
            if ((folio / FOLIO + step + i) % 3 == 0)
                *word = word_at(3, (folio + places[i]) / 8);
            atomic_fetch_add(&touches, 1);
        }
    return good;
}

/* A cancellation is pending all the time. Memory calls are not cancellation points either. */
static void *is_cancelled_already(void *argument) {
    pthread_cleanup_push(clean_up, NULL);
    CHECK(pthread_cancel(pthread_self()) == 0);
    for (int round = 0; round < 4; round++) {
        CHECK(pass_over(round));
        char *fresh = map(8 * MIB);
        fill(fresh, 8 * MIB, round);
        CHECK(madvise(fresh, 8 * MIB, MADV_PAGEOUT) == 0);
        CHECK(holds(fresh, 8 * MIB, round));
        CHECK(madvise(fresh, 4 * MIB, MADV_DONTNEED) == 0 && is_zero(fresh, 4 * MIB));
        fresh = mremap(fresh, 8 * MIB, 12 * MIB, MREMAP_MAYMOVE);
        CHECK(fresh != MAP_FAILED && holds(fresh + 4 * MIB, 0, round));
        CHECK(mprotect(fresh, 8 * MIB, PROT_READ) == 0 && mlock(fresh, 4096) == 0 && munlock(fresh, 4096) == 0);
        CHECK(munmap(fresh + MIB, MIB) == 0 && munmap(fresh, 12 * MIB) == 0);
        char *large = malloc(6 * MIB), *small = malloc(100);
        CHECK(large && small && (large = realloc(large, 9 * MIB)));
        fill(large, 9 * MIB, round);
        CHECK(holds(large, 9 * MIB, round));
        free(large);
        free(small);
    }
    through = 1;
    pthread_testcancel();
    CHECK(!"still there");
    pthread_cleanup_pop(0);
    return argument;
}

/* Walks over the same memory until it is cancelled, at any instruction. */
static void *goes_on(void *argument) {
    pthread_cleanup_push(clean_up, NULL);
    CHECK(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL) == 0);
    for (uint64_t step = 0;; step++)
        if (!pass_over(step))
            abort();
    pthread_cleanup_pop(0);
    return argument;
}

/* The program's own cancellation points still work: a read that would sleep forever, into memory that is not in RAM. */
static int ends[2];
static void *reads(void *argument) {
    pthread_cleanup_push(clean_up, NULL);
    CHECK(read(ends[0], shared + FOLIO, 64) != 0);
    pthread_cleanup_pop(0);
    return argument;
}

static void cancel_a_read(void) {
    pthread_t thread;
    void *result;
    char bytes[64];
    cleaned = 0;
    CHECK(pipe(ends) == 0);
    CHECK(pthread_create(&thread, NULL, reads, NULL) == 0);
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED && cleaned == 1);
    memcpy(bytes, shared + FOLIO, sizeof bytes);
    CHECK(write(ends[1], bytes, sizeof bytes) == sizeof bytes);
    CHECK(read(ends[0], shared + FOLIO, sizeof bytes) == sizeof bytes);
}

static void cancel_one(int round) {
    pthread_t thread;
    void *result;
    cleaned = 0;
    atomic_store(&touches, 0);
    CHECK(pthread_create(&thread, NULL, goes_on, NULL) == 0);
    while (atomic_load(&touches) < (size_t)(1 + round % 50))
        sched_yield();
    CHECK(pthread_cancel(thread) == 0);
    CHECK(pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED && cleaned == 1);
}

/* All memory can be accessed, and a child can be created. */
static void nothing_is_locked(void) {
    CHECK(holds(shared, LEN, 3));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void) {
    shared = map(LEN);
    fill(shared, LEN, 3);
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, is_cancelled_already, NULL) == 0);
    CHECK(pthread_join(thread, &result) == 0);
    CHECK(through && cleaned == 1 && result == PTHREAD_CANCELED);
    cancel_a_read();
    nothing_is_locked();
    for (int round = 0; round < 300; round++)
        cancel_one(round);
    nothing_is_locked();
    return 0;
}
