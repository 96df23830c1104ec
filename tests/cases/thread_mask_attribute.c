// BUDGETS: 24M
// A thread that is made with a signal mask of its own (pthread_attr_setsigmask_np) blocks what that says, not what its
// creator blocks. Faults come all the same.
#include "cold.h"

static char *memory;
static const int signals[] = { SIGBUS, SIGSEGV, SIGSYS, SIGUSR1, SIGALRM };
enum { NR = sizeof signals / sizeof *signals };

static void *look(void *wanted) {
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    for (int at = 0; at < NR; at++) {
        int is = sigismember(&blocked, signals[at]), is_wanted = (int)((uintptr_t)wanted >> at) & 1;
        CHECK(is == is_wanted, "mask %lx: signal %d is %d", (long)(uintptr_t)wanted, signals[at], is);
    }
    CHECK(wrong_pages(memory, 40 * MIB) == 0, "pages");
    return NULL;
}

int main(void) {
    memory = anonymous(40 * MIB);
    fill(memory, 40 * MIB);
    for (int own = 0; own < 2; own++) {
        sigset_t blocked, wanted;
        sigemptyset(&blocked);
        sigaddset(&blocked, SIGBUS);
        sigaddset(&blocked, SIGSYS);
        if (own) pthread_sigmask(SIG_BLOCK, &blocked, NULL);
        for (uintptr_t mask = 0; mask < 1 << NR; mask += mask == 30 ? 1 : 5) {
            sigemptyset(&wanted);
            for (int at = 0; at < NR; at++)
                if (mask >> at & 1) sigaddset(&wanted, signals[at]);
            pthread_attr_t attributes;
            pthread_t thread;
            pthread_attr_init(&attributes);
            pthread_attr_setsigmask_np(&attributes, &wanted);
            CHECK(pthread_create(&thread, &attributes, look, (void *)mask) == 0, "pthread_create");
            pthread_join(thread, NULL);
        }
    }
    return nr_wrong != 0;
}
