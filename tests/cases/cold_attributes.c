// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
/* Threads are made with attributes in memory that has left RAM, which the C library reads with all signals blocked. They
 * get what the attributes say: the CPUs, the signals that are blocked, the stack, and whether they are joined. */
#include "check.h"
#include <sched.h>
#include <time.h>

enum { SECONDS = 4, NR = 600, BYTES = 56 << 20, LEN = 64 << 10 };
struct kind { pthread_attr_t attributes; int cpus, mask, detached; char *stack; };
static volatile int nr_detached;

static void *look(void *argument) {
    struct kind *kind = argument;
    cpu_set_t cpus;
    sigset_t mask;
    int here = 0;
    pthread_getaffinity_np(pthread_self(), sizeof cpus, &cpus);
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    CHECK(!kind->cpus || (CPU_COUNT(&cpus) == 1 && CPU_ISSET(kind->cpus - 1, &cpus)), "%d CPUs", CPU_COUNT(&cpus));
    CHECK(sigismember(&mask, SIGUSR1) == kind->mask, "SIGUSR1 is blocked: %d", sigismember(&mask, SIGUSR1));
    CHECK(!kind->stack || ((char *)&here > kind->stack && (char *)&here < kind->stack + LEN), "another stack");
    if (kind->detached) __atomic_add_fetch(&nr_detached, 1, __ATOMIC_SEQ_CST);
    return argument;
}

int main(void) {
    cpu_set_t all, one;
    sched_getaffinity(0, sizeof all, &all);
    char *others = malloc(BYTES);
    memset(others, 1, BYTES);
    struct kind **kinds = malloc(NR * sizeof *kinds);
    for (int nr = 0; nr < NR; nr++) {
        struct kind *kind = kinds[nr] = calloc(1, PAGE);
        pthread_attr_init(&kind->attributes);
        pthread_attr_setstacksize(&kind->attributes, LEN);
        if ((kind->cpus = nr % 3 == 1)) {
            int cpu = 0;
            while (!CPU_ISSET(cpu, &all)) cpu++;
            kind->cpus = cpu + 1;
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            pthread_attr_setaffinity_np(&kind->attributes, sizeof one, &one);
        }
        if ((kind->mask = nr % 3 == 2)) {
            sigset_t mask;
            sigemptyset(&mask), sigaddset(&mask, SIGUSR1);
            pthread_attr_setsigmask_np(&kind->attributes, &mask);
        }
        if (nr % 5 == 1) pthread_attr_setstack(&kind->attributes, kind->stack = anonymous(LEN), LEN);
        if ((kind->detached = nr % 5 == 2)) pthread_attr_setdetachstate(&kind->attributes, PTHREAD_CREATE_DETACHED);
    }
    size_t at = 0;
    int made = 0;
    for (time_t end = time(NULL) + SECONDS, nr = 0; time(NULL) < end; nr++) {
        struct kind *kind = kinds[nr % NR];
        pthread_t thread;
        int result = pthread_create(&thread, &kind->attributes, look, kind);
        CHECK(result == 0, "thread %ld: %s", (long)nr, strerror(result));
        if (result == 0 && !kind->detached) CHECK(pthread_join(thread, NULL) == 0, "joining");
        made += result == 0 && kind->detached;
        for (int page = 0; page < 300; page++, at = (at + PAGE) % BYTES) others[at]++;
    }
    for (int turn = 0; turn < 5000 && nr_detached < made; turn++) usleep(1000);
    CHECK(nr_detached == made, "%d of %d detached threads have run", nr_detached, made);
    DONE;
}
