/* fork, exec, spawn and system from a program with memory in swap. */
#include "check.h"
#include <pwd.h>
#include <spawn.h>

extern char **environ;

static int status_of(pid_t child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static volatile int stop;
static char *busy;
static void *sweep(void *argument) {
    (void)argument;
    while (!stop)
        for (size_t i = 0; i < 48 * MIB; i += 4096)
            busy[i]++;
    return NULL;
}

int main(int count, char **arguments) {
    if (count > 1 && !strcmp(arguments[1], "child")) {
        char *own = map(40 * MIB); /* the new program's memory is managed, too */
        fill(own, 40 * MIB, 3);
        CHECK(holds(own, 40 * MIB, 3));
        return count == 3 && !strcmp(arguments[2], "a b") ? 23 : 1;
    }
    CHECK(getpwnam("root")); /* fork touches what the C library keeps for that, after all handlers */
    size_t len = 48 * MIB;
    busy = map(len);
    memset(busy, 1, len);
    char *recent = map(FOLIO);
    fill(recent, FOLIO, 31);
    char *block = malloc(100000), *held = map(FOLIO);
    fill(block, 100000, 32);

    /* The arguments of exec and spawn are not in RAM. */
    char *text = held;
    strcpy(text, "/proc/self/exe");
    strcpy(text + 100, "child");
    strcpy(text + 200, "a b");
    char **list = (char **)(text + 4096);
    list[0] = text;
    list[1] = text + 100;
    list[2] = text + 200;
    list[3] = NULL;
    send_out(held, FOLIO);
    char self[4096] = {0};
    CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    pid_t child;
    CHECK(posix_spawn(&child, self, NULL, NULL, list, environ) == 0);
    CHECK(status_of(child) == 23);
    strcpy(text + 300, "exit 7");
    send_out(held, FOLIO);
    int status = system(text + 300);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    FILE *stream = popen("echo seen", "r");
    char line[100];
    CHECK(stream && fgets(line, sizeof line, stream) && !strcmp(line, "seen\n") && pclose(stream) == 0);

    /* Children are created while other threads swap. */
    pthread_t sweeper;
    CHECK(pthread_create(&sweeper, NULL, sweep, NULL) == 0);
    for (int round = 0; round < 10; round++) {
        CHECK(holds(recent, FOLIO, 31) && holds(block, 100000, 32));
        CHECK(mlock(recent, FOLIO) == 0); /* in RAM when the child is created */
        child = fork();
        if (child == 0) {
            CHECK(holds(recent, FOLIO, 31));
            recent[0]++;
            char *fresh = malloc(200000), *mapped = map(4 * MIB);
            CHECK(fresh && is_zero(mapped, 4 * MIB));
            memset(fresh, 1, 200000);
            memset(mapped, 1, 4 * MIB);
            free(fresh);
            free(block); /* the child may free it, in RAM or not */
            _exit(9);
        }
        CHECK(status_of(child) == 9);
        CHECK(munlock(recent, FOLIO) == 0);
        child = fork();
        if (child == 0) {
            char *own[] = {"true", NULL};
            execvp("true", own);
            _exit(1);
        }
        CHECK(status_of(child) == 0);
    }
    stop = 1;
    CHECK(pthread_join(sweeper, NULL) == 0);

    /* A child has what is not in RAM, and keeps it while its parent goes on. */
    memset(held, 5, FOLIO);
    send_out(held, FOLIO);
    child = fork();
    if (child == 0) {
        send_out(held, FOLIO);
        for (size_t at = 0; at < FOLIO; at++)
            CHECK(held[at] == 5);
        _exit(6);
    }
    memset(held, 7, FOLIO);
    CHECK(status_of(child) == 6);
    CHECK(held[100] == 7);
    /* Neither a mapping larger than the machine's RAM is refused, nor a fork with it. */
    size_t step;
    len = 4 * (size_t)sysconf(_SC_PHYS_PAGES) * 4096;
    step = len / 20 / FOLIO * FOLIO;
    char *large = map(len);
    for (size_t at = 0; at < len; at += step)
        large[at] = at / step + 1;
    child = fork();
    if (child == 0) {
        for (size_t at = 0; at < len; at += step)
            CHECK(large[at] == (char)(at / step + 1));
        _exit(6);
    }
    CHECK(status_of(child) == 6);
    CHECK(munmap(large, len) == 0);

    child = fork();
    if (child == 0)
        exit(4); /* runs all exit handlers */
    CHECK(status_of(child) == 4);
    return 0;
}
