// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// A thread unmaps the signal stack that it has set, which no handler of its wants any more, and goes on. It is told of
// it as before, and another one can be set, on which handlers run.
#include "check.h"

enum { LEN = 64 << 10, BYTES = 64 << 20 };
static __thread char *stack;
static __thread int nr_handled;

static void handle(int number) {
    char here;
    (void)number;
    nr_handled += &here >= stack && &here < stack + LEN;
}

static void *work(void *bytes) {
    stack_t set = {.ss_sp = anonymous(LEN), .ss_size = LEN}, told;
    for (int round = 1; round <= 3; round++) {
        CHECK(sigaltstack(&set, NULL) == 0, "sigaltstack");
        CHECK(munmap(set.ss_sp, LEN) == 0, "munmap");
        fill(bytes, BYTES);
        CHECK(wrong_pages(bytes, BYTES) == 0, "other content");
        CHECK(sigaltstack(NULL, &told) == 0 && told.ss_sp == set.ss_sp && told.ss_size == LEN, "told %p", told.ss_sp);
        set.ss_sp = stack = anonymous(LEN);
        CHECK(sigaltstack(&set, NULL) == 0, "sigaltstack");
        raise(SIGUSR1);
        CHECK(nr_handled == round, "%d on it in round %d", nr_handled, round);
    }
    return NULL;
}

int main(void) {
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &action, NULL);
    char *bytes = anonymous(BYTES);
    fill(bytes, BYTES);
    pthread_t thread;
    work(bytes);
    CHECK(pthread_create(&thread, NULL, work, bytes) == 0 && pthread_join(thread, NULL) == 0, "a thread");
    DONE;
}
