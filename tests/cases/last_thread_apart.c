// EXPECT: exit 0, last line "ok"
// NEEDS: root
// BUDGETS: 24M
// LIMIT_S: 60
// A process ends with the last thread of the program's also where there is no /proc, and where /proc shows it by
// another number (in a PID namespace of its own).
#include "check.h"
#include <sched.h>
#include <sys/stat.h>

enum { BYTES = 64 << 20 };
static void *wait_a_little(void *argument) {
    usleep(200000);
    return argument;
}

/* The ways: a namespace or a root of its own; one thread that makes the exit call, main alone, or main before another. */
static int try(int has_namespace, int end, char *memory) {
    if (has_namespace && unshare(CLONE_NEWPID)) return 0; /* only the next children are there */
    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        char folder[] = "/var/tmp/last-thread-XXXXXX";
        if (!has_namespace && (!mkdtemp(folder) || chroot(folder) || chdir("/"))) _exit(9);
        memset(memory, 3, BYTES);
        if (end == 0) syscall(SYS_exit, 0);
        pthread_t other;
        if (end == 2 && pthread_create(&other, NULL, wait_a_little, NULL)) _exit(8);
        pthread_exit(NULL);
    }
    int status = -1;
    return waitpid(child, &status, 0) == child ? status : -1;
}

int main(void) {
    pthread_t first; /* it loads what pthread_exit needs */
    if (pthread_create(&first, NULL, (void *(*)(void *))pthread_exit, NULL) || pthread_join(first, NULL)) return 2;
    char *memory = malloc(BYTES);
    for (int round = 0; round < 2; round++) memset(memory, round, BYTES);
    for (int has_namespace = 0; has_namespace < 2; has_namespace++)
        for (int end = 0; end < 3; end++) {
            pid_t beside = fork();
            if (beside == 0) _exit(try(has_namespace, end, memory) != 0);
            int status = -1;
            CHECK(waitpid(beside, &status, 0) == beside && status == 0, "namespace %d, end %d: %x", has_namespace, end, status);
        }
    if (system("rmdir /var/tmp/last-thread-?????? 2>&-")) puts("folders stay");
    DONE;
}
