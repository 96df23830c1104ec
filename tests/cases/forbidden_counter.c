// BUDGETS: 24M
// LIMIT_S: 30
// ARGS: early
// A program that forbids its threads the time stamp counter, before or after memory is paged.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static const size_t len = 64 << 20;
static volatile char *memory;

static void *use(void *unused) {
    for (int round = 0; round < 3; round++)
        for (size_t at = 0; at < len; at += 4096) memory[at]++;
    return unused;
}

static void forbid(void) {
    int now = 0;
    if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV) == 0 && prctl(PR_GET_TSC, &now) == 0 && now == PR_TSC_SIGSEGV) return;
    puts("wrong: PR_SET_TSC");
    exit(1);
}

int main(int argc, char **argv) {
    (void)argv;
    pthread_t thread;
    int status = 1;
    if (argc > 1) forbid();
    memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    use(NULL);
    forbid();
    use(NULL);
    pthread_create(&thread, NULL, use, NULL);
    pthread_join(thread, NULL);
    const pid_t child = fork();
    if (child == 0) {
        use(NULL);
        _exit(memory[4096] != 12);
    }
    if (waitpid(child, &status, 0) != child || status != 0) {
        printf("wrong: the child's status %x\n", status);
        return 1;
    }
    return memory[len - 4096] != 9;
}
