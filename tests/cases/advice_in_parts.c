// EXPECT: exit 0, last line "ok"
// madvise over several mappings stops at the first that refuses the advice, here a locked one: what lies before is
// advised, what lies behind keeps its content. The locked one may be memory that swap does not manage.
#define _GNU_SOURCE
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE ((size_t)4096)
#define NR_PAGES ((size_t)2048)
#define LOCKED ((size_t)1000)

static sigjmp_buf back;

static void on_signal(int number) { siglongjmp(back, number); }

static int bad;

static void expect(const char *what, int kind, int advice, char *memory, size_t page, int has_content) {
    uint64_t found = ~0ull;
    int signal = sigsetjmp(back, 1);
    if (signal == 0)
        found = *(volatile uint64_t *)(memory + page * PAGE);
    int right = has_content ? signal == 0 && found == page + 1 : signal == SIGSEGV || (signal == 0 && found == 0);
    if (!right) {
        printf("%s: kind %d, advice %d, page %zu: signal %d, content %llu\n", what, kind, advice, page, signal,
               (unsigned long long)found);
        bad = 1;
    }
}

static void try(int kind, int advice) {
    int both = PROT_READ | PROT_WRITE, flags = MAP_ANONYMOUS | MAP_PRIVATE;
    char *memory = mmap(NULL, NR_PAGES * PAGE, both, flags, -1, 0);
    char *middle = memory + LOCKED * PAGE;
    if (kind) /* shared memory is not managed */
        mmap(middle, 8 * PAGE, both, MAP_ANONYMOUS | MAP_SHARED | MAP_FIXED, -1, 0);
    for (size_t page = 0; page < NR_PAGES; page++)
        *(uint64_t *)(memory + page * PAGE) = page + 1;
    mlock(middle, 8 * PAGE);
    int result = madvise(memory, NR_PAGES * PAGE, advice), error = errno;
    if (result == -1 && error == EINVAL) {
        expect("before", kind, advice, memory, 0, 0);
        expect("before", kind, advice, memory, LOCKED - 1, 0);
        expect("locked", kind, advice, memory, LOCKED, 1);
        expect("behind", kind, advice, memory, LOCKED + 8, 1);
        expect("behind", kind, advice, memory, NR_PAGES - 1, 1);
    } else {
        printf("kind %d, advice %d: %d, errno %d\n", kind, advice, result, error);
        bad = 1;
    }
    munmap(memory, NR_PAGES * PAGE);
}

/* Linux 6.13 and later. */
static int has_guards(void) {
    char *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
    int has = madvise(page, PAGE, 102) == 0;
    munmap(page, PAGE);
    return has;
}

int main(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_NODEFER};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    for (int kind = 0; kind < 2; kind++) {
        try(kind, MADV_DONTNEED);
        if (has_guards())
            try(kind, 102 /* MADV_GUARD_INSTALL */);
    }
    if (!bad)
        printf("ok\n");
    return bad;
}
