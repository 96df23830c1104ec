// EXPECT: exit 0, last line "ok"
// BUDGETS: 20M
/* Locked memory that is not managed, because it is small or has no access yet, is counted once, also when it grows or
 * is opened; a child has no locks. Single pages may be locked anywhere. A child has nothing of what DONTFORK was said
 * of while it was small. Threads lock and unlock while others map and unmap. */
#include "check.h"

enum { OTHERS = 40 << 20, SMALL = 64 << 10, GROWN = 2 << 20 };
static char *others;

static void use_others(void) {
    for (size_t at = 0; at < OTHERS; at += PAGE) others[at]++;
}

static size_t kib_of(const char *format) {
    char line[200];
    size_t kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status)) sscanf(line, format, &kib);
    fclose(status);
    return kib;
}

static size_t locked_kib(void) { return kib_of("VmLck: %zu"); }

static volatile int is_over;

static void *locks(void *unused) {
    char *page = anonymous(PAGE);
    while (!is_over) CHECK(mlock(page, PAGE) == 0 && munlock(page, PAGE) == 0, "locking");
    munmap(page, PAGE);
    return unused;
}

static void *maps(void *unused) {
    while (!is_over) munmap(mmap(NULL, SMALL, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), SMALL);
    return unused;
}

int main(void) {
    others = anonymous(OTHERS);
    use_others();
    pthread_t threads[2];
    pthread_create(&threads[0], NULL, locks, NULL), pthread_create(&threads[1], NULL, maps, NULL);
    sleep(2);
    is_over = 1;
    pthread_join(threads[0], NULL), pthread_join(threads[1], NULL);
    for (int round = 0; round < 3; round++) {
        char *small = anonymous(SMALL);
        fill(small, SMALL);
        CHECK(mlock(small, SMALL) == 0, "mlock");
        small = mremap(small, SMALL, GROWN, MREMAP_MAYMOVE);
        CHECK(small != MAP_FAILED, "mremap");
        CHECK(locked_kib() == GROWN >> 10, "%zu KiB are locked after mremap", locked_kib());
        fill(small, GROWN);
        use_others();
        CHECK(wrong_pages(small, GROWN) == 0 && munmap(small, GROWN) == 0, "what has grown");
        CHECK(locked_kib() == 0, "%zu KiB are locked after munmap", locked_kib());
        char *reserved = mmap(NULL, GROWN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (round == 2) CHECK(mlock(reserved, GROWN) == -1 && errno == ENOMEM, "mlock of what has no access");
        else CHECK(mlock2(reserved, GROWN, MLOCK_ONFAULT) == 0, "mlock2");
        CHECK(mprotect(reserved, GROWN, PROT_READ | PROT_WRITE) == 0, "mprotect");
        fill(reserved, GROWN);
        use_others();
        CHECK(wrong_pages(reserved, GROWN) == 0 && munmap(reserved, GROWN) == 0, "what was opened");
        CHECK(locked_kib() == 0, "%zu KiB are locked after the second munmap", locked_kib());
    }
    /* A page in each of many large folios: all but these pages may leave. */
    const size_t scattered_len = 60ul << 20, step = 2 << 20;
    char *scattered = anonymous(scattered_len);
    for (size_t at = PAGE; at < scattered_len; at += step)
        CHECK(mlock(scattered + at, PAGE) == 0, "locking a page at %zu MiB", at >> 20);
    fill(scattered, scattered_len);
    use_others();
    CHECK(wrong_pages(scattered, scattered_len) == 0, "memory with locked pages");
    use_others();
    for (size_t at = PAGE; at < scattered_len; at += step) {
        unsigned char is_there = 0;
        CHECK(mincore(scattered + at, PAGE, &is_there) == 0 && is_there & 1, "a page at %zu MiB is out", at >> 20);
    }
    CHECK(munmap(scattered, scattered_len) == 0 && locked_kib() == 0, "%zu KiB are locked", locked_kib());
    char *large = mmap(NULL, OTHERS, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mlock2(large, OTHERS, MLOCK_ONFAULT) == 0, "mlock2");
    pid_t opens = fork();
    if (opens == 0) {
        mprotect(large, OTHERS, PROT_READ | PROT_WRITE);
        fill(large, OTHERS);
        const int is_limited = getenv("FOLIOSWAP_RUN") != NULL;
        if (is_limited && kib_of("RssAnon: %zu") >= OTHERS >> 10) _exit(2);
        _exit(wrong_pages(large, OTHERS) != 0 || locked_kib() != 0);
    }
    int opened;
    CHECK(waitpid(opens, &opened, 0) == opens && opened == 0, "a child that opens locked memory: %x", opened);
    CHECK(munmap(large, OTHERS) == 0, "munmap");
    char *kept = anonymous(SMALL);
    CHECK(madvise(kept, SMALL, MADV_DONTFORK) == 0, "DONTFORK");
    kept = mremap(kept, SMALL, GROWN, MREMAP_MAYMOVE);
    fill(kept, GROWN);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        _exit(((volatile char *)kept)[GROWN - 1]);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child, "no child");
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV, "the child: %x", status);
    DONE;
}
