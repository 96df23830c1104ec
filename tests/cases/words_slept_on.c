// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M 80M
// MODES: direct
// ARGS: semaphores
// ARGS: locks
/* Pairs of threads hand a turn over by words that lie all over memory which other threads sweep, so the words leave RAM
 * all the time. The C library ends the process if the kernel does not find one. */
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NR_PAIRS 32
#define SECONDS 4
#define BYTES (96L << 20)
#define PAGE 4096L

struct pair {
    pthread_mutex_t mutex;
    pthread_cond_t told[2];
    sem_t turns[2];
    pthread_rwlock_t lock;
    int turn;
    long nr_turns;
};

enum { CONDITIONS, SEMAPHORES, LOCKS };

static struct pair *pairs[NR_PAIRS];
static volatile int over;
static char *swept;
static int kind;

static void by_conditions(struct pair *pair, int me) {
    pthread_mutex_lock(&pair->mutex);
    while (pair->turn != me && !over) {
        pthread_cond_wait(&pair->told[me], &pair->mutex);
    }
    pair->turn = !me;
    pair->nr_turns++;
    pthread_cond_signal(&pair->told[!me]);
    pthread_mutex_unlock(&pair->mutex);
}

static void by_semaphores(struct pair *pair, int me) {
    while (sem_wait(&pair->turns[me]) != 0) {
    }
    pair->nr_turns++;
    sem_post(&pair->turns[!me]);
}

static void by_locks(struct pair *pair, int me) {
    pthread_mutex_lock(&pair->mutex);
    pthread_rwlock_wrlock(&pair->lock);
    pair->nr_turns += 1 + 0 * me;
    nanosleep(&(struct timespec){0, 1000}, NULL);
    pthread_mutex_unlock(&pair->mutex);
    pthread_rwlock_unlock(&pair->lock);
}

static void *player(void *number) {
    struct pair *pair = pairs[(long)number / 2];
    int me = (long)number % 2;
    unsigned seed = (long)number;
    while (!over) {
        (kind == CONDITIONS ? by_conditions : kind == SEMAPHORES ? by_semaphores : by_locks)(pair, me);
        if (rand_r(&seed) % 8 == 0) {
            nanosleep(&(struct timespec){0, rand_r(&seed) % 2000000}, NULL);
        }
    }
    pthread_mutex_lock(&pair->mutex);
    pthread_cond_broadcast(&pair->told[!me]);
    pthread_mutex_unlock(&pair->mutex);
    sem_post(&pair->turns[!me]);
    return NULL;
}

static void *sweeper(void *sum) {
    while (!over) {
        for (long at = PAGE - 1; at < BYTES && !over; at += PAGE) {
            *(long *)sum += ++swept[at];
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    kind = argc < 2 ? CONDITIONS : strcmp(argv[1], "semaphores") == 0 ? SEMAPHORES : LOCKS;
    swept = malloc(BYTES);
    memset(swept, 1, BYTES);
    pthread_t players[2 * NR_PAIRS], sweepers[2];
    long sums[2] = {0, 0}, nr_turns = 0;
    for (long i = 0; i < NR_PAIRS; i++) {
        struct pair *pair = pairs[i] = (void *)(((long)swept + i * (BYTES / NR_PAIRS) + PAGE - 1) & -PAGE);
        memset(pair, 0, sizeof *pair);
        pthread_mutex_init(&pair->mutex, NULL);
        pthread_rwlock_init(&pair->lock, NULL);
        for (int me = 0; me < 2; me++) {
            pthread_cond_init(&pair->told[me], NULL);
            sem_init(&pair->turns[me], 0, me);
        }
    }
    for (long i = 0; i < 2; i++) {
        pthread_create(&sweepers[i], NULL, sweeper, &sums[i]);
    }
    for (long i = 0; i < 2 * NR_PAIRS; i++) {
        pthread_create(&players[i], NULL, player, (void *)i);
    }
    nanosleep(&(struct timespec){SECONDS, 0}, NULL);
    over = 1;
    for (long i = 0; i < NR_PAIRS; i++) {
        pthread_mutex_lock(&pairs[i]->mutex);
        pthread_cond_broadcast(&pairs[i]->told[0]);
        pthread_cond_broadcast(&pairs[i]->told[1]);
        pthread_mutex_unlock(&pairs[i]->mutex);
        sem_post(&pairs[i]->turns[0]);
        sem_post(&pairs[i]->turns[1]);
    }
    for (long i = 0; i < 2 * NR_PAIRS; i++) {
        pthread_join(players[i], NULL);
    }
    for (long i = 0; i < 2; i++) {
        pthread_join(sweepers[i], NULL);
    }
    for (long i = 0; i < NR_PAIRS; i++) {
        nr_turns += pairs[i]->nr_turns;
    }
    printf("%ld turns\nok\n", nr_turns);
    return nr_turns > 0 ? 0 : 1;
}
