// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// A handler, or another thread, stores where an interrupted call would have, or beside what a call writes: that stays.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

static int *status;
static volatile pid_t quick, reaped;
static fd_set *set;
static int ends[2];
static struct {
    struct shm_info info;
    volatile unsigned long count;
} *beside;
static volatile int is_over;
static unsigned long nr_lost;

static void on_child(int signal) {
    (void)signal;
    pid_t child = waitpid(quick, status, WNOHANG);
    if (child > 0) reaped = child;
}

static void on_alarm(int signal) {
    (void)signal;
    FD_CLR(ends[0], set);
}

static void *count(void *argument) {
    for (unsigned long i = 1; !is_over; i++) {
        beside->count = i;
        for (int j = 0; j < 20; j++)
            if (beside->count != i) {
                nr_lost++;
                break;
            }
    }
    return argument;
}

static int is_status_kept(void) {
    struct sigaction action = { .sa_handler = on_child };
    sigaction(SIGCHLD, &action, NULL);
    *status = -7;
    pid_t slow = fork();
    if (slow == 0) {
        sleep(20);
        _exit(1);
    }
    quick = fork();
    if (quick == 0) {
        usleep(300000);
        _exit(42);
    }
    int result = waitpid(slow, status, 0), is_kept = result == -1 && errno == EINTR && *status == 42 << 8;
    signal(SIGCHLD, SIG_DFL);
    kill(slow, SIGKILL);
    waitpid(slow, NULL, 0);
    return is_kept && reaped == quick;
}

static int is_set_kept(void) {
    struct sigaction action = { .sa_handler = on_alarm };
    sigaction(SIGALRM, &action, NULL);
    FD_ZERO(set);
    if (pipe(ends) != 0) return 0;
    FD_SET(ends[0], set);
    alarm(1);
    int result = select(ends[0] + 1, set, NULL, NULL, NULL);
    return result == -1 && errno == EINTR && !FD_ISSET(ends[0], set);
}

static int is_neighbour_kept(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, count, NULL);
    for (int i = 0; i < 50000; i++) shmctl(0, SHM_INFO, (struct shmid_ds *)&beside->info);
    is_over = 1;
    pthread_join(thread, NULL);
    return nr_lost == 0;
}

int main(void) {
    char *memory = malloc(64 << 20);
    memset(memory, 1, 64 << 20);
    status = malloc(sizeof *status);
    set = malloc(sizeof *set);
    beside = calloc(1, sizeof *beside);
    if (!is_status_kept()) return 2;
    if (!is_set_kept()) return 3;
    if (!is_neighbour_kept()) return 4;
    puts("ok");
    return 0;
}
