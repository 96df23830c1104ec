// EXPECT: exit 0, last line "ok"
// What posix_spawn, system, popen and wordexp hand to a child may be out of RAM.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <wordexp.h>
#define M (1ul << 20)
#define CHECK(x) do { if (!(x)) { printf("FAIL line %d: %s (errno %d)\n", __LINE__, #x, errno); exit(1); } } while (0)
extern char **environ;
static char *a;
static void out(void) { madvise(a, 16 * M, MADV_PAGEOUT); }
int main(void) {
    a = mmap(0, 16 * M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(a != MAP_FAILED);
    posix_spawn_file_actions_t *actions = (void *)(a + 4096);
    posix_spawnattr_t *attributes = (void *)(a + 3 * M);
    struct inside { int allocated, used; void *list; } *inside = (void *)actions;
    CHECK(posix_spawn_file_actions_init(actions) == 0 && posix_spawnattr_init(attributes) == 0);
    CHECK(posix_spawn_file_actions_addchdir_np(actions, "/dev") == 0);
    CHECK(posix_spawn_file_actions_addopen(actions, 1, "null", O_WRONLY, 0) == 0);
    CHECK(posix_spawn_file_actions_adddup2(actions, 1, 2) == 0 && posix_spawn_file_actions_addclose(actions, 0) == 0);
    sigset_t none;
    sigemptyset(&none);
    CHECK(posix_spawnattr_setsigmask(attributes, &none) == 0 && posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGMASK) == 0);
    /* The list of actions, with its strings, moves to managed memory, too. */
    char *list = a + 6 * M;
    memcpy(list, inside->list, 32 * inside->used);
    char **dir = (char **)(list + 8), **null = (char **)(list + 32 + 16);
    *dir = strcpy(a + 9 * M, *dir);
    *null = strcpy(a + 12 * M, *null);
    inside->list = list;
    for (int i = 0; i < 5; i++) {
        char *arguments[] = {"sh", "-c", "test \"$(readlink /proc/self/fd/2)\" = /dev/null && test \"$(pwd)\" = /dev", 0};
        out();
        pid_t child;
        int status;
        CHECK(posix_spawn(&child, "/bin/sh", actions, attributes, arguments, environ) == 0);
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        out();
        CHECK(posix_spawnp(&child, "sh", actions, attributes, arguments, environ) == 0);
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    char **old = environ, **own = (char **)(a + 2 * M);
    for (int i = 0; i < 5; i++)
        own[i] = a + i * 2 * M + 5000;
    sprintf(own[0], "HERE=there"), sprintf(own[1], "PATH=%s", getenv("PATH"));
    /* What the runner needs goes on. */
    int count = 2;
    for (char **at = old; *at && count < 200; at++)
        if (strncmp(*at, "PATH=", 5) && strncmp(*at, "HERE=", 5)) {
            own[count] = a + 10 * M + count * 4000;
            snprintf(own[count++], 4000, "%s", *at);
        }
    own[count] = 0;
    environ = own;
    out();
    int status = system("test $HERE = there && exit 7");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    out();
    FILE *stream = popen("echo $HERE", "r");
    char line[100];
    CHECK(stream && fgets(line, sizeof line, stream) && !strcmp(line, "there\n") && pclose(stream) == 0);
    out();
    wordexp_t words;
    CHECK(wordexp("$(echo $HERE)", &words, 0) == 0 && words.we_wordc == 1 && !strcmp(words.we_wordv[0], "there"));
    /* What cannot be read is the kernel's to refuse. */
    pid_t child;
    char *words_of_it[] = {"true", 0}, *bad[] = {"true", (char *)8, 0}, **volatile nowhere = (char **)8;
    CHECK(posix_spawn(&child, (char *)8, 0, 0, words_of_it, environ) == EFAULT);
    CHECK(posix_spawn(&child, "/bin/true", 0, 0, bad, environ) == EFAULT);
    CHECK(posix_spawn(&child, "/bin/true", 0, 0, words_of_it, bad) == EFAULT);
    CHECK(posix_spawn(&child, "/bin/true", 0, 0, words_of_it, nowhere) == EFAULT);
    puts("ok");
    return 0;
}
