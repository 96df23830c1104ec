// EXPECT: exit 0, last line "ok"
// ARGS: front libjemalloc.so.2
// ARGS: behind libjemalloc.so.2
// ARGS: front libmimalloc.so.2
// ARGS: behind libmimalloc.so.2
// ARGS: front libtcmalloc_minimal.so.4
// ARGS: behind libtcmalloc_minimal.so.4
// BUDGETS: 48M
// NEEDS: package:libjemalloc2 package:libmimalloc2.0 package:libtcmalloc-minimal4
// CFLAGS: -fno-builtin
// Another allocator, preloaded in front of what is preloaded already or behind it: threads allocate, grow, move and
// free blocks of all sizes, also each other's, and children find what their parent had and free it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 3, SLOTS = 250, STEPS = 200, ROUNDS = 2 };

static struct slot {
    pthread_mutex_t lock;
    unsigned char *block;
    size_t length;
    uint64_t seed;
} slots[SLOTS];

static uint64_t mixed(uint64_t number) {
    number = (number ^ number >> 31) * 0x7fb5d329728ea185u + 0x9e3779b97f4a7c15u;
    return number ^ number >> 29;
}

static void fail(const char *what) {
    printf("FAIL %s\n", what);
    fflush(stdout);
    _exit(1);
}

// Every word of a small block, a word of each half KiB of a large one.
static size_t stride(size_t length) { return length > 1 << 16 ? 512 : 8; }

static void fill(struct slot *slot, uint64_t seed, size_t length) {
    slot->seed = seed, slot->length = length;
    for (size_t at = 0; at + 8 <= length; at += stride(length)) *(uint64_t *)(slot->block + at) = mixed(seed + at);
}

static void check(const struct slot *slot, size_t kept, const char *where) {
    for (size_t at = 0; at + 8 <= kept; at += stride(slot->length))
        if (*(uint64_t *)(slot->block + at) != mixed(slot->seed + at)) fail(where);
}

static size_t length_of(uint64_t number) {
    switch (number % 6) {
    case 0: return 16 + (number >> 8) % 4000;
    case 1: return 300000 + (number >> 8) % 2000000;
    default: return 20000 + (number >> 8) % 200000;
    }
}

static void allocate(struct slot *slot, uint64_t number) {
    size_t length = length_of(mixed(number));
    switch (number >> 40 & 3) {
    case 0:
        slot->block = calloc(1, length);
        for (size_t at = 0; slot->block && at < length; at += 64)
            if (slot->block[at] != 0) fail("calloc: not zero");
        break;
    case 1: {
        void *aligned = NULL;
        size_t alignment = (size_t)64 << (number >> 50) % 8;
        if (posix_memalign(&aligned, alignment, length) != 0) aligned = NULL;
        if ((uintptr_t)aligned % alignment != 0) fail("posix_memalign: not aligned");
        slot->block = aligned;
        break;
    }
    default: slot->block = malloc(length);
    }
    if (slot->block == NULL) fail("no memory");
    fill(slot, number, length);
}

static void *work(void *first) {
    uint64_t number = (uintptr_t)first;
    for (int step = 0; step < STEPS; step++) {
        number = mixed(number);
        struct slot *slot = &slots[number % SLOTS];
        pthread_mutex_lock(&slot->lock);
        if (slot->block == NULL) {
            allocate(slot, number);
        } else if (number >> 60 < 6) {
            size_t length = length_of(mixed(number));
            slot->block = realloc(slot->block, length);
            if (slot->block == NULL) fail("realloc: no memory");
            check(slot, length < slot->length ? length : slot->length, "realloc: content");
            fill(slot, number, length);
        } else {
            check(slot, slot->length, "content");
            free(slot->block);
            slot->block = NULL;
        }
        pthread_mutex_unlock(&slot->lock);
    }
    return NULL;
}

static void check_all(const char *where) {
    for (int at = 0; at < SLOTS; at++)
        if (slots[at].block != NULL) check(&slots[at], slots[at].length, where);
}

static void child(void) {
    check_all("a child's content");
    for (int at = 0; at < SLOTS; at += 3) free(slots[at].block), slots[at].block = NULL;
    work((void *)99);
    check_all("a child's content at its end");
    _exit(0);
}

// jemalloc's own functions take blocks of malloc, and the other way round.
static void check_own_functions(void) {
    void *(*allocate_more)(size_t, int) = dlsym(RTLD_DEFAULT, "mallocx");
    void *(*resize)(void *, size_t, int) = dlsym(RTLD_DEFAULT, "rallocx");
    if (allocate_more == NULL || resize == NULL) return;
    char *first = strcpy(malloc(100), "first"), *second = strcpy(allocate_more(100, 0), "second");
    char *third = strdup("third");
    if (malloc_usable_size(second) < 100) fail("usable size");
    first = resize(first, 9000, 0), second = realloc(second, 5000), third = resize(third, 5000, 0);
    if (strcmp(first, "first") || strcmp(second, "second") || strcmp(third, "third")) fail("jemalloc's functions");
    free(first), free(second), free(third);
}

// Starts the program again with the library beside what is preloaded already.
static void preload(char **words) {
    const char *before = getenv("LD_PRELOAD");
    char *list;
    int front = strcmp(words[1], "front") == 0;
    if (asprintf(&list, "%s %s", front ? words[2] : before ? before : "", front ? before ? before : "" : words[2]) < 0)
        fail("asprintf");
    setenv("LD_PRELOAD", list, 1);
    setenv("PRELOADED", words[2], 1);
    execl("/proc/self/exe", words[0], words[1], words[2], NULL);
    fail("exec");
}

static void check_loaded(const char *library) {
    char line[4096];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
        if (strstr(line, library) != NULL) {
            fclose(maps);
            return;
        }
    fail("the library is not loaded");
}

int main(int count, char **words) {
    if (count == 3 && getenv("PRELOADED") == NULL) preload(words);
    if (count == 3) check_loaded(words[2]);
    check_own_functions();
    for (int at = 0; at < SLOTS; at++) pthread_mutex_init(&slots[at].lock, NULL);
    for (uintptr_t round = 0; round < ROUNDS; round++) {
        pthread_t threads[THREADS];
        for (uintptr_t at = 0; at < THREADS; at++)
            if (pthread_create(&threads[at], NULL, work, (void *)(round * 10 + at + 1))) fail("pthread_create");
        for (int at = 0; at < THREADS; at++) pthread_join(threads[at], NULL);
        pid_t forked = fork();
        if (forked == 0) child();
        int status;
        if (forked < 0 || waitpid(forked, &status, 0) != forked || status != 0) fail("child");
        check_all("content after the child");
    }
    for (int at = 0; at < SLOTS; at++) free(slots[at].block);
    puts("ok");
}
