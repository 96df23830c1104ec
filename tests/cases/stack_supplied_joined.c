// BUDGETS: 24M
// LIMIT_S: 60
// ARGS: kill
// ARGS: detached
// ARGS: fork
// ARGS: many
// What describes a thread lies at the top of the stack that the program has supplied. Until the thread is joined, other
// threads write to it, also where they cannot handle a fault: that part has not left RAM. The rest has, so that many
// threads fit.
#include "cold.h"
#include <semaphore.h>

enum { STACK = (256 << 10) - 1024, NR = 40 };

static char *memory;
static pthread_t ended, other;
static pthread_attr_t attributes;
static sem_t go;

static void *end(void *value) { return value; }

static void *end_later(void *value) {
    while (sem_wait(&go)) continue;
    return value;
}

static void make(pthread_t *thread, int place, void *(*body)(void *)) {
    pthread_attr_setstack(&attributes, memory + place * 2 * MIB + MIB, STACK);
    CHECK(pthread_create(thread, &attributes, body, NULL) == 0, "pthread_create");
}

// The first thread has ended, and the library has noticed that.
static void let_end(void) {
    pthread_t another;
    usleep(100000);
    CHECK(pthread_create(&another, NULL, end, NULL) == 0, "pthread_create");
    pthread_join(another, NULL);
    send_out(memory, 4 * MIB);
}

static void *forks(void *value) {
    let_end();
    pid_t child = fork();
    int nr_lost = 0, status = 0;
    for (int at = 0; at < 1024; at++) nr_lost += memory[MIB + STACK + at] != 'x';
    if (child == 0) {
        // Its own description stays in RAM there, too.
        unsigned char is_present = 0;
        send_out(memory, 4 * MIB);
        mincore((void *)((uintptr_t)pthread_self() & -PAGE), PAGE, &is_present);
        _exit(nr_lost != 0 || !(is_present & 1));
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0 && nr_lost == 0, "status %x, %d lost", status, nr_lost);
    return value;
}

static void *use_stack(void *value) {
    volatile char used[8192];
    for (size_t at = 0; at < sizeof used; at += 512) used[at] = (char)at;
    while (sem_wait(&go)) continue;
    return used[512] == 0 ? value : memory;
}

static void many(void) {
    pthread_t threads[NR];
    for (int at = 0; at < NR; at++) make(&threads[at], at, use_stack);
    usleep(100000);
    send_out(memory, NR * 2 * MIB);
    for (int at = 0; at < NR; at++) sem_post(&go);
    for (int at = 0; at < NR; at++) {
        void *result = memory;
        CHECK(pthread_join(threads[at], &result) == 0 && result == NULL, "thread %d", at);
    }
}

int main(int count, char **arguments) {
    const char *how = count > 1 ? arguments[1] : "";
    start_engine();
    memory = anonymous(NR * 2 * MIB);
    memset(memory + MIB + STACK, 'x', 1024); // the program's own, in the same page
    pthread_attr_init(&attributes);
    sem_init(&go, 0, 0);
    if (strcmp(how, "many") == 0) {
        many();
        return nr_wrong != 0;
    }
    make(&ended, 0, end);
    if (strcmp(how, "detached") == 0) {
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        make(&other, 1, end_later);
        let_end();
        sem_post(&go);
        usleep(100000);
    } else if (strcmp(how, "fork") == 0) {
        make(&other, 1, forks);
        CHECK(pthread_join(other, NULL) == 0, "pthread_join");
    } else {
        let_end();
        CHECK(pthread_kill(ended, 0) == 0, "pthread_kill");
    }
    CHECK(pthread_join(ended, NULL) == 0, "pthread_join");
    return nr_wrong != 0;
}
