/* A program's own handlers of forks, registered before the pool is opened, read its memory, and wait for a lock whose
 * holders do. Argument: "monitor" or "direct". */
#include <folioswap.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20, BYTES = 48 * MIB, PAGE = 4096, FORKS = 20 };

static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
static char *memory;
static atomic_int is_over, nr_wrong;

static void check(size_t at) {
    if (*(volatile size_t *)(memory + at) != at + 1)
        nr_wrong++;
}

static void check_some(void) {
    for (size_t at = 0; at < BYTES; at += 64 * PAGE)
        check(at);
}

static void before(void) {
    pthread_mutex_lock(&held);
    check_some();
}

static void after(void) {
    check_some();
    pthread_mutex_unlock(&held);
}

static void *read_with_lock(void *seed) {
    for (size_t at = (size_t)seed * PAGE; !is_over; at = (at + 4099 * PAGE) % BYTES) {
        pthread_mutex_lock(&held);
        check(at);
        pthread_mutex_unlock(&held);
    }
    return NULL;
}

int main(int argc, char **argv) {
    folioswap_options options = FOLIOSWAP_OPTIONS;
    folioswap *pool;
    void *mapping;
    pthread_t readers[2];

    pthread_atfork(before, after, after);
    options.memory = 16 * MIB;
    options.faults = argc > 1 ? argv[1] : "monitor";
    if (folioswap_open(&options, &pool) || folioswap_map(pool, BYTES, &mapping)) {
        fprintf(stderr, "%s\n", folioswap_message());
        return 1;
    }
    memory = mapping;
    for (size_t at = 0; at < BYTES; at += PAGE)
        *(size_t *)(memory + at) = at + 1;
    for (size_t nr = 0; nr < 2; nr++)
        pthread_create(&readers[nr], NULL, read_with_lock, (void *)nr);
    for (int nr = 0; nr < FORKS; nr++) {
        pid_t child = fork();
        if (child == 0) {
            check_some();
            _exit(nr_wrong != 0);
        }
        int status;
        if (child < 0 || waitpid(child, &status, 0) != child || status)
            nr_wrong++;
    }
    is_over = 1;
    for (size_t nr = 0; nr < 2; nr++)
        pthread_join(readers[nr], NULL);
    folioswap_close(pool);
    puts(nr_wrong ? "wrong" : "right");
    return nr_wrong != 0;
}
