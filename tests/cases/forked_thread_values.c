// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M 48M
// CFLAGS: -fno-builtin
/* A program with an allocator of its own, and a thread with a value of the 60th key. The C library has a block for it,
   which it clears in a child of another thread's fork at once. What lies beside it is right in the child. */
#include "check.h"
#ifndef LINKED
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *area;
static size_t taken;
static void *aligned(size_t size, size_t alignment) {
    pthread_mutex_lock(&lock);
    if (area == NULL) area = anonymous(64 * MIB);
    taken = (taken + 16 + alignment - 1) / alignment * alignment;
    size_t *block = (size_t *)(area + taken);
    taken += size;
    block[-1] = size;
    pthread_mutex_unlock(&lock);
    return block;
}
void *malloc(size_t size) { return aligned(size, 16); }
void *calloc(size_t count, size_t size) { return aligned(count * size, 16); }
void *memalign(size_t alignment, size_t size) { return aligned(size, alignment < 16 ? 16 : alignment); }
void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
void free(void *block) { (void)block; }
size_t malloc_usable_size(void *block) { return ((size_t *)block)[-1]; }
void *realloc(void *block, size_t size) {
    size_t before = block ? ((size_t *)block)[-1] : 0;
    void *moved = aligned(size, 16);
    return before ? memcpy(moved, block, before < size ? before : size) : moved;
}
#endif
#ifndef ONLY_ALLOCATOR
enum { NR_WORDS = 112 };
static pthread_barrier_t begun;
static size_t *words[2];
static void *keep_values(void *unused) {
    pthread_key_t key;
    for (int i = 0; i < 60; i++) pthread_key_create(&key, NULL);
    malloc(4 * MIB);
    words[0] = malloc(900);
    pthread_setspecific(key, &key);
    words[1] = malloc(900);
    for (size_t i = 0; i < NR_WORDS; i++) words[0][i] = words[1][i] = i * 3 + 1;
    pthread_barrier_wait(&begun);
    for (;;) pause();
    return unused;
}
static int nr_wrong_words(void) {
    int nr = 0;
    for (size_t i = 0; i < NR_WORDS; i++) nr += (words[0][i] != i * 3 + 1) + (words[1][i] != i * 3 + 1);
    return nr;
}
int main(void) {
    malloc(6 * MIB);
    pthread_t thread;
    pthread_barrier_init(&begun, NULL, 2);
    pthread_create(&thread, NULL, keep_values, NULL);
    pthread_barrier_wait(&begun);
    malloc(4 * MIB);
    char *others = anonymous(96 * MIB);
    for (int round = 0; round < 2; round++) fill(others, 96 * MIB);
    pid_t child = fork();
    if (!child) _exit(nr_wrong_words());
    int status;
    waitpid(child, &status, 0);
    CHECK(status == 0, "status %x in the child", status);
    CHECK(nr_wrong_words() == 0, "wrong here");
    DONE;
}
#endif
