#!/bin/bash
# EXPECT: exit 0, last line "ok"
# NEEDS: package:musl-tools
# A program of another C library runs, as a child by any of the calls, with what else is to be preloaded.
cat >musl.c <<'C'
#include <stdio.h>
#include <stdlib.h>
int main(int count, char **words) {
    const char *list = getenv("LD_PRELOAD");
    printf("%s %s %d\n", words[count - 1], list ? list : "", getenv("KEPT") != 0);
    return 7;
}
C
cat >starts.c <<'C'
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
static void start(int how, char *name, char *path) {
    char *words[] = {name, "word", 0};
    if (how == 0) execve(path, words, environ);
    if (how == 1) execv(path, words);
    if (how == 2) execvp(name, words);
    if (how == 3) execl(path, name, "word", (char *)0);
    if (how == 4) execlp(name, name, "word", (char *)0);
    if (how == 5) execvp(path, words);
    int file = open(path, O_RDONLY); /* open in what is executed, too: a script is read from it */
    if (how == 6) fexecve(file, words, environ);
    if (how == 7) execveat(file, "", words, environ, AT_EMPTY_PATH);
    _exit(99);
}
int main(int count, char **words) {
    char *arguments[] = {words[1], "word", 0};
    for (int how = 0; how < 18; how++) {
        int status;
        pid_t child;
        if (how < 8) {
            if (!(child = fork())) start(how, words[1], words[2]);
        } else if (how < 16) {
            if (!(child = vfork())) start(how - 8, words[1], words[2]);
        } else if ((how == 16 ? posix_spawn(&child, words[2], 0, 0, arguments, environ)
                              : posix_spawnp(&child, words[1], 0, 0, arguments, environ)) != 0)
            return 1;
        if (waitpid(child, &status, 0) != child || status != 7 << 8) {
            printf("FAIL way %d: status %x\n", how, status);
            return 1;
        }
    }
    puts("ok");
}
C
set -e
musl-gcc -o musl musl.c && gcc -o starts starts.c
printf '#!%s\n' "$PWD/musl" >script && chmod +x script
export PATH="/nowhere:$PWD:$PATH" KEPT=1
for program in musl script; do
    ./starts $program "./$program" >said || { cat said; exit 1; }
    [ "$(grep -c '^word  *1$' said)" = 18 ] || { cat said; exit 1; }
done
LD_PRELOAD="$LD_PRELOAD:/nowhere/other.so" ./starts musl ./musl >said 2>/dev/null
[ "$(grep -c '^word :*/nowhere/other.so 1$' said)" = 18 ] || { cat said; exit 1; }
echo ok
