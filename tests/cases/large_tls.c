// EXPECT: exit 0, last line "ok"
// BUDGETS: 64M
/* Much thread-local storage: each thread of the engine's has it too, above its stack. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 600 << 10, LEN = 200 << 20 };

static __thread char own[BYTES] = {1, 2, 3};

static void *check(void *place) {
    own[BYTES - 1] = 7;
    return (void *)(long)(own[0] != 1 || own[2] != 3 || memcmp(place, own, 1) == 0);
}

int main(void) {
    char *bytes = malloc(LEN);
    for (int round = 1; round < 4; round++) {
        memset(bytes, round + 1, LEN);
        pthread_t thread;
        void *wrong;
        if (pthread_create(&thread, NULL, check, bytes)) return puts("no thread"), 1;
        pthread_join(thread, &wrong);
        if (wrong) return puts("a thread has not its own storage"), 1;
        for (size_t at = 0; at < LEN; at += 4096)
            if (bytes[at] != round + 1) return puts("a wrong byte"), 1;
    }
    puts("ok");
    return 0;
}
