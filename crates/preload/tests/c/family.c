/* Processes that fork, write, unmap, protect and end at random. Each must find in its memory what it had when it was
 * forked, and what it wrote since: nothing later, and no zero. Two threads of the first process write on during its
 * forks. Arguments: first seed, number of seeds, MiB of memory. */
#include "check.h"

enum { PAGE = 4096, WORDS = PAGE / 8, STEP = 37, STEPS = 40, MOST_CHILDREN = 3, MOST_DEPTH = 2, NR_THREADS = 2 };

struct process {
    uint64_t random, name;
    int depth, nr_children;
    pid_t children[MOST_CHILDREN];
};

static uint64_t *memory, *of_threads;
static uint32_t *writers; /* of each page; 0: it is zero */
static size_t nr_pages, nr_thread_pages;
static _Atomic int is_over;

static uint64_t next(struct process *me) {
    me->random ^= me->random << 13;
    me->random ^= me->random >> 7;
    me->random ^= me->random << 17;
    return me->random * 0x2545f4914f6cdd1dull >> 11;
}

static uint64_t word(uint32_t writer, size_t page, size_t at) {
    return writer ? ((uint64_t)writer << 32 ^ page << 9 ^ at) * 0x9e3779b97f4a7c15ull : 0;
}

static void check(struct process *me, size_t first, size_t nr) {
    for (size_t page = first; page < first + nr; page++)
        for (size_t at = 0; at < WORDS; at += STEP)
            if (memory[page * WORDS + at] != word(writers[page], page, at)) {
                dprintf(2, "process %#lx: word %zu of page %zu (%p) is %#lx, not that of writer %#x\n", me->name, at,
                        page, (void *)&memory[page * WORDS + at], memory[page * WORDS + at], writers[page]);
                _exit(1);
            }
}

static void put(struct process *me, size_t first, size_t nr) {
    uint32_t writer = (uint32_t)next(me) | 1;
    for (size_t page = first; page < first + nr; page++) {
        for (size_t at = 0; at < WORDS; at += STEP)
            memory[page * WORDS + at] = word(writer, page, at);
        writers[page] = writer;
    }
}

/* What the threads write has the number of its word in the upper half, and counts in the lower. */
static void check_threads(void) {
    for (size_t at = 0; at < nr_thread_pages * WORDS; at += STEP)
        CHECK(of_threads[at] >> 32 == at + 1);
}

static void *write_on(void *argument) {
    size_t half = nr_thread_pages * WORDS / NR_THREADS, first = (size_t)argument * half;
    while (!is_over)
        for (size_t at = first + (STEP - first % STEP) % STEP; at < first + half; at += STEP) {
            CHECK(of_threads[at] >> 32 == at + 1);
            of_threads[at]++;
        }
    return NULL;
}

static void reap(struct process *me) {
    pid_t pid = me->children[--me->nr_children];
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    if (status && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)) {
        dprintf(2, "process %#lx: its child %d ended with %#x\n", me->name, pid, status);
        _exit(1);
    }
}

static void live(struct process *me);

static void beget(struct process *me) {
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid) {
        me->children[me->nr_children++] = pid;
        return;
    }
    uint64_t random = next(me);
    struct process child = {.random = random | 1, .name = me->name << 4 | (me->nr_children + 1), .depth = me->depth + 1};
    if (random % 3 == 0)
        check_threads();
    live(&child);
    _exit(0);
}

static void live(struct process *me) {
    for (int step = 0; step < STEPS; step++) {
        size_t first = next(me) % nr_pages, nr = 1 + next(me) % (next(me) % 4 ? 40 : 1200);
        if (nr > nr_pages - first)
            nr = nr_pages - first;
        char *at = (char *)(memory + first * WORDS);
        switch (next(me) % 16) {
        case 0 ... 5:
            put(me, first, nr);
            break;
        case 6 ... 9:
            check(me, first, nr);
            break;
        case 10 ... 11:
            if (me->depth < MOST_DEPTH && me->nr_children < MOST_CHILDREN)
                beget(me);
            else if (me->nr_children)
                reap(me);
            break;
        case 12: {
            size_t len = 1 + next(me) % (3 * MIB);
            void *block = malloc(len);
            CHECK(block);
            memset(block, 1, len);
            free(block);
            break;
        }
        case 13:
            CHECK(munmap(at, nr * PAGE) == 0);
            CHECK(mmap(at, nr * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
            memset(writers + first, 0, nr * sizeof *writers);
            break;
        case 14:
            CHECK(mprotect(at, nr * PAGE, PROT_READ) == 0);
            check(me, first, nr);
            CHECK(mprotect(at, nr * PAGE, PROT_READ | PROT_WRITE) == 0);
            break;
        case 15:
            if (me->depth && next(me) % 4 == 0) {
                while (me->nr_children)
                    reap(me);
                kill(getpid(), SIGKILL);
            }
            break;
        }
    }
    check(me, 0, nr_pages);
    while (me->nr_children)
        reap(me);
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    nr_pages = (size_t)atoi(argv[3]) * MIB / PAGE;
    nr_thread_pages = nr_pages / 8;
    memory = map(nr_pages * PAGE);
    of_threads = map(nr_thread_pages * PAGE);
    CHECK((writers = calloc(nr_pages, sizeof *writers)));
    for (size_t at = 0; at < nr_thread_pages * WORDS; at += STEP)
        of_threads[at] = (at + 1) << 32;
    pthread_t threads[NR_THREADS];
    for (size_t at = 0; at < NR_THREADS; at++)
        CHECK(pthread_create(&threads[at], NULL, write_on, (void *)at) == 0);
    for (uint64_t seed = strtoull(argv[1], NULL, 10), end = seed + strtoull(argv[2], NULL, 10); seed < end; seed++) {
        struct process first = {.random = (seed + 1) * 0x9e3779b97f4a7c15ull | 1, .name = seed};
        live(&first);
        dprintf(1, "%lu ", seed);
    }
    is_over = 1;
    for (size_t at = 0; at < NR_THREADS; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
    check_threads();
    return 0;
}
