/* fork in a program with a library whose fork handlers allocate. With LIBRARY this is the library, without it the
   program. */
#include "check.h"

int handled(void);

#ifdef LIBRARY
static int nr_handled;

static void handle(void) {
    char *small = malloc(100), *large = malloc(5 * MIB);
    CHECK(small && large);
    memset(large, 1, 5 * MIB);
    free(small);
    free(large);
    nr_handled++;
}

/* Runs before the preloaded library's constructor: the program's libraries are initialised first. */
__attribute__((constructor)) static void begin(void) {
    CHECK(pthread_atfork(handle, handle, handle) == 0);
}

int handled(void) { return nr_handled; }
#else
int main(void) {
    char *data = map(32 * MIB);
    fill(data, 32 * MIB, 1);
    for (int round = 0; round < 5; round++) {
        pid_t child = fork();
        if (child == 0)
            _exit(handled() == 2 * round + 2 ? 3 : 4);
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    }
    CHECK(handled() == 10);
    CHECK(holds(data, 32 * MIB, 1));
    return 0;
}
#endif
