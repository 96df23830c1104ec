// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 60
// Twenty-four threads read 8 MiB each from a file at once: far more than is in RAM, or may be held there.
#include "cold.h"
#define NR 24
#define LEN (8 * MIB)
static int file;
static pthread_barrier_t barrier;
static void *read_all(void *unused) {
    char *buffer = anonymous(LEN + MIB);
    memset(buffer, 1, LEN);
    (void)unused;
    for (int round = 0; round < 1; round++) {
        pthread_barrier_wait(&barrier);
        if (pread(file, buffer, LEN, 0) != (ssize_t)LEN) return "pread";
        for (size_t at = 0; at < LEN; at += PAGE)
            if (buffer[at] != 7) return "content";
        memset(buffer, 1, LEN);
    }
    return NULL;
}
int main(void) {
    static char bytes[LEN];
    pthread_t threads[NR];
    start_engine();
    file = open("/var/tmp", O_TMPFILE | O_RDWR, 0600);
    memset(bytes, 7, LEN);
    if (write(file, bytes, LEN) != (ssize_t)LEN) return 2;
    pthread_barrier_init(&barrier, NULL, NR);
    for (int i = 0; i < NR; i++) pthread_create(&threads[i], NULL, read_all, NULL);
    for (int i = 0; i < NR; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        CHECK(!wrong, "%s", (char *)wrong);
    }
    DONE;
}
