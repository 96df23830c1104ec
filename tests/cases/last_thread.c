// EXPECT: exit 0, last line "ok"
// ARGS: thread
// ARGS: call
// BUDGETS: 24M
// LIMIT_S: 30
// The process ends with the last thread of the program's: main calls pthread_exit, alone or before another thread
// returns, or the only thread makes the exit call of a thread.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES (64ul << 20)

static void *wait_a_little(void *argument) {
    usleep(200000);
    return argument;
}

static void say(void) { printf("ok\n"); }

int main(int argc, char **argv) {
    char *memory = malloc(BYTES); /* the engine starts, and pages */
    for (int round = 0; round < 2; round++) memset(memory, round, BYTES);
    pthread_t beside;
    if (pthread_create(&beside, NULL, wait_a_little, NULL)) return 2;
    for (int way = 0; way < 2; way++) {
        errno = EDOM;
        pid_t child = way ? _Fork() : fork();
        if (child == 0) pthread_exit(NULL);
        int status = -1, kept = errno;
        if (waitpid(child, &status, 0) != child || status || (way && kept != EDOM)) {
            printf("FAIL child, way %d: status %x, errno %d\n", way, status, kept);
            return 1;
        }
    }
    pthread_join(beside, NULL);
    if (argc > 1 && strcmp(argv[1], "call") == 0) {
        say();
        fflush(stdout);
        syscall(SYS_exit, 0);
    }
    atexit(say);
    pthread_t other;
    if (argc > 1 && pthread_create(&other, NULL, wait_a_little, NULL)) return 2;
    pthread_exit(NULL);
}
