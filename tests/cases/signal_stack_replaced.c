// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// A thread maps something over the signal stack that it has set, or moves it or another mapping, and goes on. It is
// told of the stack as before, and handlers run on what is there then, or on another one that it sets.
#include "check.h"

enum { LEN = 64 << 10, BYTES = 48 << 20, NR_KINDS = 9 };
static const int plain = PROT_READ | PROT_WRITE, at_place = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
static __thread char *stack;
static __thread int nr_handled;

static void handle(int number) {
    char here;
    (void)number;
    nr_handled += &here >= stack && &here < stack + LEN;
}

static void set_stack(char *at) {
    stack_t set = {.ss_sp = stack = at, .ss_size = LEN};
    CHECK(sigaltstack(&set, NULL) == 0, "sigaltstack");
}

static void change(int kind, char *bytes) {
    char *other = anonymous(LEN);
    memset(other, 2, LEN);
    switch (kind) {
    case 0: CHECK(mmap(stack, LEN, plain, at_place, -1, 0) == stack, "mapped"); break;
    case 1:
        CHECK(mmap(stack, 2 * LEN, PROT_NONE, at_place, -1, 0) == stack, "reserved");
        fill(bytes, BYTES);
        CHECK(mprotect(stack, LEN, plain) == 0, "mprotect");
        set_stack(stack);
        break;
    case 2: CHECK(mremap(other, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, stack) == stack, "another moved there"); break;
    case 3: CHECK(mremap(stack, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, other) == other, "moved away"); break;
    case 4: CHECK(mremap(stack, 2 * LEN, LEN / 2, 0) == stack, "cut"); break;
    case 5: CHECK(mmap(stack, 2 * LEN, plain, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == stack, "shared"); break;
    case 6: CHECK(mmap(stack, PAGE, PROT_NONE, at_place, -1, 0) == stack, "a guard page"); break;
    case 7: CHECK(mmap(stack, LEN, plain, MAP_PRIVATE | MAP_FIXED, -1, 0) == MAP_FAILED, "of no file"); break;
    case 8:
        CHECK(mprotect(other, LEN, PROT_READ) == 0, "mprotect");
        CHECK(mremap(other, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, stack) == stack, "what is only read");
        break;
    }
    for (int round = 0; round < 2; round++) fill(bytes, BYTES);
    if (kind == 3 || kind == 4 || kind == 8) set_stack(anonymous(LEN));
}

static void *work(void *bytes) {
    for (int round = 0; round < 2 * NR_KINDS; round++) {
        stack_t told;
        set_stack(anonymous(2 * LEN));
        memset(stack, 1, LEN);
        change(round % NR_KINDS, bytes);
        CHECK(wrong_pages(bytes, BYTES) == 0, "other content");
        CHECK(sigaltstack(NULL, &told) == 0 && told.ss_sp == stack && told.ss_size == LEN, "told %p", told.ss_sp);
        raise(SIGUSR1);
        CHECK(nr_handled == round + 1, "%d on it in round %d", nr_handled, round);
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
