// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// ARGS: unmapped
// Where the signal stack cannot be written, a signal becomes SIGSEGV, whose handler runs on the ordinary stack; without
// one the process ends.
#include "cold.h"
#define LEN (64ul << 10)
static volatile int nr_segv, nr_user;
static void on_segv(int signal) { nr_segv += signal == SIGSEGV; }
static void on_user(int signal) { nr_user += signal == SIGUSR1; }
int main(int count, char **words) {
    (void)words;
    start_engine();
    char *stack = anonymous(LEN);
    stack_t set = {.ss_sp = stack, .ss_size = LEN};
    struct sigaction segv = {.sa_handler = on_segv}, user = {.sa_handler = on_user, .sa_flags = SA_ONSTACK};
    CHECK(sigaltstack(&set, 0) == 0 && sigaction(SIGSEGV, &segv, 0) == 0 && sigaction(SIGUSR1, &user, 0) == 0, "set");
    for (int round = 0; round < 10; round++) {
        if (count > 1 && round == 5) CHECK(munmap(stack, LEN) == 0, "munmap");
        if (count == 1) CHECK(mprotect(stack, LEN, round < 5 ? PROT_READ | PROT_WRITE : PROT_READ) == 0, "mprotect");
        raise(SIGUSR1);
    }
    CHECK(nr_segv == 5 && nr_user == 5, "%d and %d", nr_segv, nr_user);
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_IGN);
        raise(SIGUSR1);
        _exit(0);
    }
    waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "the child's status: %#x", status);
    DONE;
}
