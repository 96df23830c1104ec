// EXPECT: exit 0, last line "ok"
// BUDGETS: 16M
// LIMIT_S: 60
// Timers and a message queue tell of events by threads that the C library makes. What these touch is not in RAM, nor is
// the C library's own memory, since the program uses much between the events.
#define _GNU_SOURCE
#include <fcntl.h>
#include <mqueue.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define SIZE (64 * MIB)
#define NR_BLOCKS 4000

static char *memory, *blocks[NR_BLOCKS];
static int nr_told;

static void check(int is_right, const char *what) {
    if (is_right) return;
    printf("wrong: %s\n", what);
    fflush(stdout);
    _exit(1);
}

static void on_event(union sigval value) {
    check(value.sival_int == 77, "the value");
    for (size_t at = 0; at < SIZE; at += 64 * 1024) memory[at + 9]++;
    for (int number = 0; number < 200; number++) {
        char *block = malloc(500);
        memset(block, 1, 500);
        free(block);
    }
    __atomic_fetch_add(&nr_told, 1, __ATOMIC_SEQ_CST);
}

static void use_memory(void) {
    for (size_t at = 0; at < SIZE; at += 4096) memory[at]++;
    for (int number = 0; number < NR_BLOCKS; number++) {
        free(blocks[number]);
        blocks[number] = malloc(1000 + number % 7 * 300);
        blocks[number][number % 1000] = 1;
    }
    madvise(memory, SIZE, MADV_PAGEOUT);
}

static void wait_for(int count) {
    for (int tries = 0; tries < 5000 && __atomic_load_n(&nr_told, __ATOMIC_SEQ_CST) < count; tries++) usleep(1000);
    check(nr_told == count, "an event is told once");
}

int main(void) {
    memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    use_memory();
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 * 1024);
    struct sigevent event = { .sigev_notify = SIGEV_THREAD, .sigev_notify_function = on_event };
    event.sigev_value.sival_int = 77;
    timer_t timers[4];
    for (int number = 0; number < 4; number++) {
        event.sigev_notify_attributes = number & 1 ? &attributes : NULL;
        check(timer_create(CLOCK_MONOTONIC, &event, &timers[number]) == 0, "timer_create");
    }
    struct itimerspec soon = { .it_value = { 0, 1000000 } };
    int count = 0;
    for (int round = 0; round < 2; round++) {
        for (int number = 0; number < 4; number++) {
            use_memory();
            check(timer_settime(timers[number], 0, &soon, NULL) == 0, "timer_settime");
            wait_for(++count);
        }
    }
    for (int number = 0; number < 4; number++) check(timer_delete(timers[number]) == 0, "timer_delete");
    struct mq_attr form = { .mq_maxmsg = 4, .mq_msgsize = 100 };
    char name[64];
    snprintf(name, sizeof name, "/notified_by_threads_%d", getpid());
    mqd_t queue = mq_open(name, O_CREAT | O_RDWR, 0600, &form);
    if (queue != (mqd_t)-1) {
        mq_unlink(name);
        for (int round = 0; round < 4; round++) {
            check(mq_notify(queue, &event) == 0, "mq_notify");
            use_memory();
            check(mq_send(queue, "x", 1, 0) == 0, "mq_send");
            wait_for(++count);
            char message[100];
            check(mq_receive(queue, message, sizeof message, NULL) == 1, "mq_receive");
        }
    }
    for (size_t at = 0; at < SIZE; at += 64 * 1024) check(memory[at + 9] == count, "memory");
    puts("ok");
    return 0;
}
