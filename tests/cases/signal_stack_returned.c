// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M 48M
/* A handler's context names the signal stack that the program has set, and its return sets that stack again, whatever
 * the handler has set meanwhile. With SS_AUTODISARM no handler finds one, a plain one neither. Handlers that have been
 * put on top of each other block what they are to block only. */
#include "check.h"
#include <ucontext.h>
#ifndef SS_AUTODISARM
#define SS_AUTODISARM (1U << 31)
#endif

enum { BYTES = 56 << 20, NR_STACKS = 3 };
static const size_t lens[NR_STACKS] = { 28 << 10, 128 << 10, 2 << 20 };
static stack_t stacks[NR_STACKS], next;
static volatile stack_t seen, in_handler;
static volatile unsigned long masks[65];
static volatile int sets, order[8], nr_run;
static char *memory;

static unsigned long blocked(void) {
    sigset_t set;
    pthread_sigmask(SIG_BLOCK, NULL, &set);
    return *(unsigned long *)&set;
}

static void look(int number, siginfo_t *about, void *context) {
    (void)about;
    seen = ((ucontext_t *)context)->uc_stack;
    for (size_t at = 0; at < BYTES && nr_run % 10 == 0; at += PAGE) memory[at]++;
    stack_t now;
    CHECK(sigaltstack(NULL, &now) == 0, "asking in a handler");
    in_handler = now;
    if (sets) CHECK(sigaltstack(&next, NULL) == 0, "setting one in a handler");
    masks[number] = blocked();
    order[nr_run++ % 8] = number;
}

static void install(int number, int flags) {
    struct sigaction action = { .sa_sigaction = look, .sa_flags = SA_SIGINFO | flags };
    CHECK(sigaction(number, &action, NULL) == 0, "sigaction");
}

static int is_stack(const volatile stack_t *told, const stack_t *wanted) {
    return told->ss_sp == wanted->ss_sp && told->ss_size == wanted->ss_size
        && (told->ss_flags & ~SS_ONSTACK) == (wanted->ss_flags & ~SS_ONSTACK);
}

static void set_and_look(const stack_t *stack, int number, const char *what) {
    stack_t now;
    CHECK(sigaltstack(stack, NULL) == 0, "%s: setting a stack", what);
    CHECK(raise(number) == 0 && is_stack(&seen, stack), "%s: the context has %p %zu %x", what, seen.ss_sp, seen.ss_size,
          seen.ss_flags);
    if (stack->ss_flags & SS_AUTODISARM) CHECK(in_handler.ss_flags == SS_DISABLE, "%s: it is not disarmed", what);
    CHECK(sigaltstack(NULL, &now) == 0 && is_stack(&now, stack), "%s: %p %zu %x is set afterwards", what, now.ss_sp,
          now.ss_size, now.ss_flags);
}

static void see_masks(int flags) {
    sigset_t both, none;
    sigemptyset(&both), sigemptyset(&none);
    sigaddset(&both, SIGUSR1), sigaddset(&both, SIGUSR2);
    install(SIGUSR1, SA_NODEFER | flags), install(SIGUSR2, flags);
    pthread_sigmask(SIG_SETMASK, &both, NULL);
    raise(SIGUSR1), raise(SIGUSR2);
    nr_run = 0;
    pthread_sigmask(SIG_SETMASK, &none, NULL);
    CHECK(nr_run == 2 && order[0] == SIGUSR2 && order[1] == SIGUSR1, "%d handlers, %d and %d", nr_run, order[0], order[1]);
    CHECK(masks[SIGUSR2] == 1ul << (SIGUSR2 - 1), "the upper handler blocks %lx", masks[SIGUSR2]);
    CHECK(masks[SIGUSR1] == 0, "the lower handler blocks %lx", masks[SIGUSR1]);
}

static void *all(void *unused) {
    for (int plain = 0; plain < 2; plain++) {
        install(SIGUSR1, plain ? 0 : SA_ONSTACK);
        for (int i = 0; i < NR_STACKS; i++) {
            stack_t disarmed = stacks[i], none = { .ss_flags = SS_DISABLE };
            disarmed.ss_flags = SS_AUTODISARM;
            sets = 0;
            set_and_look(&stacks[i], SIGUSR1, "set");
            set_and_look(&disarmed, SIGUSR1, "disarmed");
            set_and_look(&none, SIGUSR1, "none");
            for (int other = 0; other <= NR_STACKS; other++) {
                next = other < NR_STACKS ? stacks[other] : none;
                sets = plain;
                if (plain) set_and_look(&stacks[i], SIGUSR1, "another in a handler");
                if (plain) set_and_look(&none, SIGUSR1, "one in a handler");
                sets = other != i;
                set_and_look(&disarmed, SIGUSR1, "another in a handler that disarms");
            }
        }
    }
    sets = 0;
    for (int i = 0; i < NR_STACKS; i++) {
        CHECK(sigaltstack(&stacks[i], NULL) == 0, "a stack");
        see_masks(SA_ONSTACK), see_masks(0);
    }
    return unused;
}

int main(void) {
    memory = anonymous(BYTES);
    memset(memory, 1, BYTES);
    for (int i = 0; i < NR_STACKS; i++) stacks[i] = (stack_t){ .ss_sp = anonymous(lens[i]), .ss_size = lens[i] };
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, all, NULL) == 0 && pthread_join(thread, NULL) == 0, "a thread");
    stack_t none = { .ss_flags = SS_DISABLE };
    CHECK(sigaltstack(&none, NULL) == 0, "none");
    all(NULL);
    struct sigaction now;
    install(SIGURG, SA_RESETHAND);
    CHECK(raise(SIGURG) == 0 && sigaction(SIGURG, NULL, &now) == 0 && now.sa_handler == SIG_DFL, "it is not reset");
    CHECK((now.sa_flags & SA_ONSTACK) == 0, "flags %x after SA_RESETHAND", now.sa_flags);
    DONE;
}
