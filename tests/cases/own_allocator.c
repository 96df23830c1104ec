/* EXPECT: exit 0, last line "ok"
 * BUDGETS: 64M
 * ARGS: 64
 * A program with an allocator of its own, which its library uses too: it touches new memory while it holds its lock.
 * Whoever resolves that fault must not allocate there. */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t chunk = 4 << 20;
static char *at, *end;

void *malloc(size_t len)
{
    size_t *block;

    len = (len + 31) & ~15ul;
    pthread_mutex_lock(&lock);
    if (!at || at + len > end) {
        at = mmap(NULL, chunk, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED)
            _exit(1);
        end = at + chunk;
    }
    block = (size_t *)at;
    at += len;
    memset(block, 0, len);
    *block = len - 16;
    pthread_mutex_unlock(&lock);
    return block + 2;
}

void free(void *block)
{
    (void)block;
}

void *calloc(size_t count, size_t len)
{
    return malloc(count * len);
}

void *realloc(void *block, size_t len)
{
    void *fresh = malloc(len);

    if (block) {
        size_t old = ((size_t *)block)[-2];
        memcpy(fresh, block, old < len ? old : len);
    }
    return fresh;
}

static void *fill(void *unused)
{
    (void)unused;
    for (int i = 0; i < 6000; i++)
        memset(malloc(10000), 1, 10000);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[2];

    if (argc > 1)
        chunk = (size_t)atoi(argv[1]) << 20;
    for (int i = 0; i < 2; i++)
        pthread_create(threads + i, NULL, fill, NULL);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    return write(1, "ok\n", 3) != 3;
}
