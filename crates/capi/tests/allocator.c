/* A program's malloc that keeps what it has of each thread under a lock, and holds that lock while it touches memory of
 * a pool: as jemalloc does when it makes an arena there. Argument: "monitor" or "direct". */
#include <folioswap.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);

static pthread_mutex_t threads = PTHREAD_MUTEX_INITIALIZER;
static __thread int is_known __attribute__((tls_model("initial-exec")));

static void know(void) {
    if (is_known)
        return;
    pthread_mutex_lock(&threads);
    is_known = 1;
    pthread_mutex_unlock(&threads);
}

void *malloc(size_t size) {
    know();
    return __libc_malloc(size);
}

void *calloc(size_t nr, size_t size) {
    know();
    return __libc_calloc(nr, size);
}

void *realloc(void *block, size_t size) {
    know();
    return __libc_realloc(block, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
    know();
    return __libc_memalign(alignment, size);
}

int posix_memalign(void **block, size_t alignment, size_t size) {
    know();
    *block = __libc_memalign(alignment, size);
    return *block ? 0 : 12;
}

enum { MIB = 1 << 20, BYTES = 64 * MIB };

/* Writes and reads four times what may be in RAM, with the lock, which is released then. */
static int is_right(char *memory, int value) {
    int right = 1;
    for (size_t at = 0; at < BYTES; at += 4096)
        memory[at] = (char)(value + at / 4096);
    for (size_t at = 0; at < BYTES; at += 4096)
        right &= memory[at] == (char)(value + at / 4096);
    pthread_mutex_unlock(&threads);
    return right;
}

/* Returns with the lock. */
static folioswap *opened(const char *faults, void **memory) {
    folioswap_options options = FOLIOSWAP_OPTIONS;
    folioswap *pool;
    options.memory = 16 * MIB;
    options.faults = faults;
    int refused = folioswap_open(&options, &pool);
    pthread_mutex_lock(&threads);
    if (refused || folioswap_map(pool, BYTES, memory)) {
        fprintf(stderr, "%s\n", folioswap_message());
        _exit(1);
    }
    return pool;
}

int main(int argc, char **argv) {
    const char *faults = argc > 1 ? argv[1] : "monitor";
    cpu_set_t one; /* threads that are started come later */
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    for (int round = 0; round < 8; round++) {
        void *memory, *other;
        folioswap *pool = opened(faults, &memory), *second;
        if (!is_right(memory, round))
            return 2;
        second = opened(faults, &other); /* threads of the first run already */
        if (!is_right(other, round + 1))
            return 3;
        pid_t child = fork();
        if (child == 0)
            _exit(pthread_mutex_lock(&threads) == 0 && is_right(memory, round + 2) ? 0 : 4);
        int status;
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
            return 5;
        folioswap_close(second);
        folioswap_close(pool);
    }
    puts("right");
    return 0;
}
