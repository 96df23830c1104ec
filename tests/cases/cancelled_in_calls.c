// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 90
// ARGS: read
// Threads that can be cancelled at any time (PTHREAD_CANCEL_ASYNCHRONOUS) are cancelled while they make system calls
// past the C library: their cleanup handlers run, and they end.
#include "check.h"
#include <time.h>

enum { NR = 1000, BYTES = 48 << 20 };
static int ends[2], reads;
static volatile int nr_cleaned, is_up;
static char *memory;

static long call(long which, long a, long b, long c) {
#if defined(__x86_64__)
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(which), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
#else
    return syscall(which, a, b, c);
#endif
}

static void clean(void *room) {
    CHECK(((volatile char *)room)[5] == 7, "the frame of the thread");
    nr_cleaned++;
}

static void *run(void *argument) {
    volatile char room[64];
    memset((char *)room, 7, sizeof room);
    pthread_cleanup_push(clean, (void *)room);
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    is_up = 1;
    for (;;) reads ? call(SYS_read, ends[0], (long)argument, 8) : call(SYS_getppid, 0, 0, 0);
    pthread_cleanup_pop(0);
    return NULL;
}

int main(int argc, char **argv) {
    reads = argc > 1 && !strcmp(argv[1], "read");
    if (argc < 0) return argv != NULL;
    memory = anonymous(BYTES);
    if (pipe(ends)) return 2;
    fill(memory, BYTES);
    for (int i = 0; i < NR; i++) {
        pthread_t thread;
        void *result = NULL;
        struct timespec until;
        nr_cleaned = is_up = 0;
        pthread_create(&thread, NULL, run, memory + (i * 37 % 1000) * PAGE + 8);
        while (!is_up) usleep(10);
        usleep(i * 37 % 600);
        pthread_cancel(thread);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 20;
        CHECK(pthread_timedjoin_np(thread, &result, &until) == 0, "a thread that does not end");
        CHECK(result == PTHREAD_CANCELED && nr_cleaned == 1, "%p, %d cleaned", result, nr_cleaned);
        if (nr_wrong) break;
    }
    CHECK(wrong_pages(memory, BYTES) == 0, "pages");
    DONE;
}
