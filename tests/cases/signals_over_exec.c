// EXPECT: exit 0, last line "ok"
// BUDGETS: 16M
// What a program ignores and blocks stays so in the program that it executes, or starts: SIGBUS and SIGSYS, too. An
// execution that fails changes nothing.
#define _GNU_SOURCE
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE (64ul << 20)

extern char **environ;

static void check(int is_right, const char *what) {
    if (is_right) return;
    printf("wrong: %s\n", what);
    exit(1);
}

static void use_memory(char *memory) {
    for (size_t at = 0; at < SIZE; at += 4096) memory[at]++;
}

static int look(int wanted) {
    int signals[] = { SIGSYS, SIGBUS, SIGUSR1 };
    sigset_t blocked;
    sigprocmask(SIG_BLOCK, NULL, &blocked);
    for (int at = 0; at < 3; at++) {
        struct sigaction action;
        sigaction(signals[at], NULL, &action);
        check((action.sa_handler == SIG_IGN) == (wanted & 1), "ignored");
        check(sigismember(&blocked, signals[at]) == wanted >> 1, "blocked");
    }
    char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    use_memory(memory);
    use_memory(memory);
    if (wanted & 1) kill(getpid(), SIGBUS), kill(getpid(), SIGSYS);
    return 0;
}

int main(int count, char **words) {
    if (count > 1) return look(atoi(words[1]));
    char *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sigset_t ours;
    sigemptyset(&ours);
    sigaddset(&ours, SIGSYS);
    sigaddset(&ours, SIGBUS);
    sigaddset(&ours, SIGUSR1);
    for (int wanted = 0; wanted < 4; wanted++) {
        void (*action)(int) = wanted & 1 ? SIG_IGN : SIG_DFL;
        signal(SIGSYS, action), signal(SIGBUS, action), signal(SIGUSR1, action);
        sigprocmask(wanted & 2 ? SIG_BLOCK : SIG_UNBLOCK, &ours, NULL);
        use_memory(memory);
        char text[8], *arguments[] = { words[0], text, NULL };
        snprintf(text, sizeof text, "%d", wanted);
        for (int way = 0; way < 4; way++) {
            pid_t child = -1;
            if (way == 3) {
                check(posix_spawn(&child, words[0], NULL, NULL, arguments, environ) == 0, "posix_spawn");
            } else if ((child = way == 2 ? vfork() : fork()) == 0) {
                execv("/nowhere", arguments);
                if (way != 2) use_memory(memory);
                if (way == 1) syscall(SYS_execve, words[0], arguments, environ);
                execv(words[0], arguments);
                _exit(9);
            }
            int status;
            int is_well = waitpid(child, &status, 0) == child && status == 0;
            if (!is_well) printf("way %d, %d wanted, status %x\n", way, wanted, status);
            check(is_well, "the executed program");
        }
    }
    puts("ok");
    return 0;
}
