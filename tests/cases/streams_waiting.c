// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// Threads that wait in fread for much from pipes do not keep their buffers in RAM meanwhile.
#include "cold.h"
#define NR 8
#define LEN (4 * MIB)
static int ends[NR][2];
static void *read_all(void *index) {
    char *buffer = anonymous(16 * MIB);
    memset(buffer, 1, LEN);
    return (void *)fread(buffer, 1, LEN, fdopen(ends[(long)index][0], "r"));
}
int main(void) {
    pthread_t threads[NR];
    start_engine();
    for (long i = 0; i < NR; i++) {
        if (pipe(ends[i])) return 2;
        pthread_create(&threads[i], NULL, read_all, (void *)i);
    }
    sleep(1);
    for (int i = 0; i < 3; i++) use_others();
    char *zeros = calloc(1, LEN);
    for (int i = 0; i < NR; i++)
        for (size_t done = 0; done < LEN;) {
            ssize_t written = write(ends[i][1], zeros, LEN - done);
            if (written <= 0) return 3;
            done += written;
        }
    for (int i = 0; i < NR; i++) {
        void *got;
        pthread_join(threads[i], &got);
        CHECK((size_t)got == LEN, "thread %d: %zu", i, (size_t)got);
    }
    DONE;
}
