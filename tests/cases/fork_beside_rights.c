// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// One thread changes its rights while another forks, and the children change theirs.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int is_over;

static void *change(void *argument) {
    while (!is_over) prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0);
    return argument;
}

int main(void) {
    char *memory = malloc(40 << 20);
    memset(memory, 1, 40 << 20);
    pthread_t thread;
    pthread_create(&thread, NULL, change, NULL);
    for (int i = 0; i < 30; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(10);
            prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0);
            _exit(0);
        }
        int status = -1;
        if (waitpid(child, &status, 0) != child || status != 0) {
            printf("child %d: status %x\n", i, status);
            _exit(1);
        }
    }
    is_over = 1;
    pthread_join(thread, NULL);
    puts("ok");
    return 0;
}
