/* A call that succeeds leaves errno as it was, also while the pages that it needs are held, moved and waited for. */
#include "check.h"

#define LEN (48 * MIB)
#define PART (512 << 10)
#define ROUNDS 300
#define THREADS 3

static char *memory;
static char name[64]; /* of an unlinked file */

static void *work(void *arg) {
    size_t thread = (uintptr_t)arg;
    unsigned seed = 1 + (unsigned)thread;
    FILE *file = fopen(name, "r");
    CHECK(file && setvbuf(file, NULL, _IONBF, 0) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        char *at = memory + (rand_r(&seed) % (LEN / PART / THREADS) * THREADS + thread) * PART; /* this thread's own */
        errno = 0;
        CHECK(fseek(file, 0, SEEK_SET) == 0 && fread(at, 1, PART, file) == PART);
        CHECK(errno == 0);
        CHECK(pread(fileno(file), at, PART, 0) == PART);
        CHECK(errno == 0);
        CHECK(pread(fileno(file), at, 1000, 0) == 1000);
        CHECK(errno == 0);
        CHECK(access(strcpy(at, name), R_OK) == 0);
        CHECK(errno == 0);
        char *own = mmap(NULL, 2 * FOLIO, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(own != MAP_FAILED);
        memset(own, 1, 2 * FOLIO);
        CHECK(errno == 0);
        CHECK(mprotect(own, 8192, PROT_READ) == 0 && mprotect(own, 8192, PROT_READ | PROT_WRITE) == 0);
        CHECK(errno == 0);
        CHECK(madvise(own, FOLIO, MADV_DONTNEED) == 0 && munmap(own + 4096, 4096) == 0 && munmap(own, 2 * FOLIO) == 0);
        CHECK(errno == 0);
        free(malloc(3 * MIB));
        CHECK(errno == 0);
    }
    fclose(file);
    return NULL;
}

int main(void) {
    FILE *file = tmpfile();
    CHECK(file && ftruncate(fileno(file), PART) == 0);
    sprintf(name, "/proc/self/fd/%d", fileno(file));
    memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    memset(memory, 7, LEN);
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i) == 0);
    for (size_t i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    return 0;
}
