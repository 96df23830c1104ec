/* A signal handler reads memory of a pool, whatever it has interrupted: a hold, malloc, or the opening of another
 * pool. Argument: "monitor" or "direct". */
#include <folioswap.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { MIB = 1 << 20, BLOCK = 2 * MIB, BYTES = 48 * MIB, PAGE = 4096, POOLS = 20, BLOCKS = 256 };

static char *memory;
static volatile int nr_handled, nr_wrong;

static void check(size_t at) {
    if (*(volatile size_t *)(memory + at) != at + 1)
        nr_wrong++;
}

static void handle(int signal) {
    static size_t at;
    (void)signal;
    check(at);
    at = (at + 4099 * PAGE) % BYTES;
    nr_handled++;
}

static folioswap *opened(const char *faults, size_t len, void **mapping) {
    folioswap_options options = FOLIOSWAP_OPTIONS;
    folioswap *pool;
    options.memory = 16 * MIB;
    options.faults = faults;
    if (folioswap_open(&options, &pool) || folioswap_map(pool, len, mapping)) {
        fprintf(stderr, "%s\n", folioswap_message());
        _exit(1);
    }
    return pool;
}

int main(int argc, char **argv) {
    const char *faults = argc > 1 ? argv[1] : "monitor";
    struct itimerval often = {{0, 200}, {0, 200}}, never = {{0, 0}, {0, 0}};
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    void *mapping, *blocks[BLOCKS] = {0};
    folioswap *pool = opened(faults, BYTES, &mapping);
    memory = mapping;
    for (size_t at = 0; at < BYTES; at += PAGE)
        *(size_t *)(memory + at) = at + 1;
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int nr = 0; nr < 2000; nr++) {
        char *held = memory + rand() % (BYTES / BLOCK) * BLOCK;
        if (folioswap_hold(pool, held, BLOCK))
            nr_wrong++;
        folioswap_release(pool, held, BLOCK);
    }
    for (time_t end = time(NULL) + 3; time(NULL) < end;)
        for (int nr = 0; nr < 1000; nr++) {
            int at = rand() % BLOCKS;
            free(blocks[at]);
            blocks[at] = malloc(rand() % 3000);
        }
    for (int nr = 0; nr < POOLS; nr++)
        folioswap_close(opened(faults, MIB, &mapping));
    setitimer(ITIMER_REAL, &never, NULL);
    for (size_t at = 0; at < BYTES; at += PAGE)
        check(at);
    folioswap_close(pool);
    puts(nr_wrong || nr_handled < 100 ? "wrong" : "right");
    return 0;
}
