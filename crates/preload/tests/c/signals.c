/* Signals: handlers that access memory while it is swapped, masks, alternate stacks, the program's own SIGBUS. */
#include "check.h"
#include <setjmp.h>
#include <sys/time.h>

static char *region;
static size_t len = 64 * MIB;
static volatile sig_atomic_t alarms;

static void on_alarm(int signal) {
    (void)signal;
    static size_t at;
    at = (at + 7 * FOLIO + 4096) % len;
    region[at] += 0;
    alarms++;
}

static void handlers(void) {
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigfillset(&action.sa_mask); /* includes SIGBUS: faults in the handler are still resolved */
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (int round = 0; round < 3 || alarms < 200; round++) {
        CHECK(holds(region, len, 41));
        void *blocks[200];
        for (int i = 0; i < 200; i++)
            blocks[i] = malloc((i + 1) * 1000);
        char *mapped = map(6 * MIB);
        memset(mapped, 1, 6 * MIB);
        CHECK(munmap(mapped, 6 * MIB) == 0);
        for (int i = 0; i < 200; i++)
            free(blocks[i]);
    }
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    CHECK(alarms > 50);
}

static void masks(void) {
    sigset_t all, before;
    sigfillset(&all);
    CHECK(sigprocmask(SIG_SETMASK, &all, &before) == 0);
    send_out(region, len);
    CHECK(holds(region, len, 41));
    CHECK(pthread_sigmask(SIG_SETMASK, &before, NULL) == 0);
}

static sigjmp_buf back;
static volatile sig_atomic_t on_stack;
static char *own_stack;
static void on_bus(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context, (void)info;
    char here;
    on_stack = &here > own_stack && &here < own_stack + 65536;
    siglongjmp(back, 1);
}

static void own_sigbus(void) {
    stack_t none, own = {.ss_sp = own_stack = malloc(65536), .ss_size = 65536};
    CHECK(sigaltstack(NULL, &none) == 0 && none.ss_flags == SS_DISABLE);
    CHECK(sigaltstack(&own, NULL) == 0);
    struct sigaction before, action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    CHECK(sigaction(SIGBUS, NULL, &before) == 0 && before.sa_handler == SIG_DFL);
    CHECK(sigaction(SIGBUS, &action, NULL) == 0);
    CHECK(sigaction(SIGBUS, NULL, &before) == 0 && before.sa_sigaction == on_bus);
    const char *folder = getenv("TEST_FOLDER");
    int fd = open(folder ? folder : "/var/tmp", O_TMPFILE | O_RDWR, 0600);
    CHECK(fd >= 0);
    char *file = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(file != MAP_FAILED);
    if (!sigsetjmp(back, 1)) {
        CHECK(*(volatile char *)file == 0); /* beyond the end of the file: the program's own SIGBUS */
        CHECK(!"no SIGBUS");
    }
    CHECK(on_stack);
    send_out(region, len);
    CHECK(holds(region, len, 41)); /* and the engine's faults are still resolved */
    CHECK(signal(SIGBUS, SIG_DFL) != SIG_ERR);
    stack_t off = {.ss_flags = SS_DISABLE};
    CHECK(sigaltstack(&off, &none) == 0 && none.ss_sp == own_stack);
    free(own_stack);
    send_out(region, len);
    CHECK(holds(region, len, 41));
}

int main(void) {
    region = map(len);
    fill(region, len, 41);
    handlers();
    masks();
    own_sigbus();
    return 0;
}
