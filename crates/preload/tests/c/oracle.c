/* Memory calls at random: prints each call with its result, each signal with its address, and hashes of all memory.
   What it prints must be the same with the library as without. Arguments: the first seed, how many seeds, a limit of
   steps, a sum of what is allowed (enum allowed), and steps to leave out, with commas between them. Each step has random
   numbers of its own, so that leaving one out does not change the others. */
#include "check.h"
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/syscall.h>

#define PAGE ((size_t)4096)
#define NR_PAGES ((size_t)32768)
#define STEPS 120
#define FILE_PAGES 64

static char *const base = (char *)0x300000000000;
static unsigned long long state;
static char *said;
static size_t said_len;
static int file, ends[2], allowed;
/* A child waits until its parent has written, because some of the memory may be shared. */
static volatile struct { uint64_t hash, may_go; } *of_child;
static char is_left_out[STEPS];

enum allowed {
    BOLD = 1,     /* system calls get memory that is not accessible */
    FAMILY = 2,   /* fork, vfork, clone and exec */
    REMOTE = 4,   /* memory is read by way of /proc and process_vm_readv */
    REFERRED = 8, /* pipes refer to pages */
};

/* For all anonymous mappings of a seed, because the library adds it: mappings with it and without it do not join. */
static int reserves;

/* Whether a seed gives advice on huge pages. The library keeps that to itself: the kernel makes it a border, at which a
   call of mremap fails. So such seeds move nothing. */
static int advises_huge;

static size_t below(size_t bound) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (state >> 11) % bound;
}

#define ANY(...)                                                                                                       \
    ({                                                                                                                 \
        static const int all[] = {__VA_ARGS__};                                                                        \
        all[below(sizeof all / sizeof *all)];                                                                          \
    })

static void say(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    said_len += vsprintf(said + said_len, format, arguments);
    va_end(arguments);
}

static __thread sigjmp_buf back;
static __thread volatile sig_atomic_t is_trying;
static __thread siginfo_t caught;

static void on_signal(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    if (!is_trying) {
        dprintf(2, "signal %d at %p\n", number, info->si_addr);
        _exit(1);
    }
    caught = *info;
    siglongjmp(back, 1);
}

/* Whether an access raises no signal. */
static int can(void (*access)(void *), void *argument) {
    is_trying = sigsetjmp(back, 1) == 0;
    if (is_trying)
        access(argument);
    int could = is_trying;
    is_trying = 0;
    return could;
}

/* A page, and a word at either end of it or the sum of some. */
struct page {
    volatile uint64_t *words;
    uint64_t first, last, sum;
};

static void store_words(void *argument) {
    struct page *page = argument;
    page->words[0] = page->first, page->words[511] = page->last;
}

static void load_words(void *argument) {
    struct page *page = argument;
    page->first = page->words[0], page->last = page->words[511];
}

static void add_words(void *argument) {
    struct page *page = argument;
    for (size_t word = 0; word < 512; word += 73)
        page->sum = page->sum * 31 + page->words[word];
}

static struct page at_page(size_t page) { return (struct page){.words = (uint64_t *)(base + page * PAGE)}; }

static void say_signal(void) {
    say(" signal %d code %d at %zx", caught.si_signo, caught.si_code, (size_t)((char *)caught.si_addr - base));
}

static void store(size_t number, uint64_t value) {
    struct page page = at_page(number);
    page.first = value, page.last = ~value;
    if (!can(store_words, &page)) {
        say("store %zu:", number);
        say_signal();
        say("\n");
    }
}

static void load(size_t number) {
    struct page page = at_page(number);
    say("load %zu:", number);
    if (can(load_words, &page))
        say(" %llx %llx", (unsigned long long)page.first, (unsigned long long)page.last);
    else
        say_signal();
    say("\n");
}

static void say_all(void) {
    uint64_t hash = 0;
    for (size_t number = 0; number < NR_PAGES; number++) {
        struct page page = at_page(number);
        if (!can(add_words, &page))
            page.sum = (uint64_t)(1000 + caught.si_signo * 16 + caught.si_code);
        hash = (hash ^ page.sum) * 1099511628211ull;
        if (number % 512 == 511) {
            say("%zu: %llx\n", number / 512, (unsigned long long)hash);
            hash = 0;
        }
    }
}

static const char *result(long value) {
    static char text[40];
    if (value == -1)
        sprintf(text, "error %d", errno);
    else
        sprintf(text, "%ld", value);
    return text;
}

static long at(void *address) { return address == MAP_FAILED ? -1 : (char *)address - base; }

static int any_protection(void) {
    return ANY(PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE,
               PROT_READ | PROT_EXEC, PROT_READ | PROT_WRITE | PROT_EXEC, PROT_WRITE);
}

/* Anywhere: only whether it works, is zero and can be written. */
static void map_anywhere(size_t count) {
    int flags = MAP_ANONYMOUS | ANY(MAP_PRIVATE, MAP_PRIVATE, MAP_SHARED) | reserves | ANY(0, 0, MAP_32BIT, MAP_STACK);
    int more = ANY(0, 0, 0, MAP_NONBLOCK | MAP_POPULATE, MAP_SHARED, 0x800000 /* unknown */);
    char *hint = ANY(0, 1) ? base + NR_PAGES * PAGE + below(5000) : NULL;
    uint64_t *words = mmap(hint, count * PAGE, PROT_READ | PROT_WRITE, flags | more, -1, 0);
    say("mmap anywhere %zu %x: %s", count, flags | more, words == MAP_FAILED ? result(-1) : "mapped");
    if (words != MAP_FAILED) {
        size_t last = count * (PAGE / 8) - 1;
        say(" %d", words[0] == 0 && words[last] == 0 && words[last / 2] == 0);
        words[0] = words[last] = words[last / 2] = 7;
        say(" %llu", (unsigned long long)words[last]);
        say(" %s", result(munmap(words, count * PAGE)));
    }
    say("\n");
}

static void map_anew(size_t first, size_t count) {
    int access = below(2) ? PROT_READ | PROT_WRITE : any_protection();
    int flags = MAP_FIXED | (below(8) ? MAP_PRIVATE : MAP_SHARED);
    int from = below(6) ? -1 : file;
    flags |= from == -1 ? MAP_ANONYMOUS | reserves | ANY(0, 0, 0, 0, MAP_POPULATE) : 0;
    if (below(16) == 0)
        flags = (flags & ~MAP_FIXED) | MAP_FIXED_NOREPLACE;
    flags |= count < 32 ? ANY(0, 0, 0, 0, 0, MAP_LOCKED, MAP_STACK, MAP_NONBLOCK) : 0;
    off_t offset = from == -1 ? 0 : (off_t)(below(FILE_PAGES) * PAGE);
    long mapped = at(mmap(base + first * PAGE, count * PAGE, access, flags, from, offset));
    say("mmap %zu %zu %d %x %d: %s\n", first, count, access, flags, from != -1, result(mapped));
}

static void advise(size_t first, size_t count) {
    int advice = ANY(MADV_DONTNEED, MADV_DONTNEED, MADV_DONTNEED, MADV_FREE, MADV_COLD, MADV_PAGEOUT, MADV_PAGEOUT,
                     MADV_WILLNEED, MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_POPULATE_READ, MADV_POPULATE_WRITE,
                     MADV_DONTFORK, MADV_DOFORK, MADV_WIPEONFORK, MADV_KEEPONFORK, MADV_DONTDUMP, MADV_DODUMP,
                     MADV_SEQUENTIAL, MADV_RANDOM, MADV_NORMAL, MADV_REMOVE, MADV_MERGEABLE, MADV_UNMERGEABLE, 24,
                     25 /* COLLAPSE */, 102, 102, 103, 103, 999);
    if ((advice == MADV_HUGEPAGE || advice == MADV_NOHUGEPAGE) && !advises_huge)
        advice = MADV_WILLNEED;
    if (advice == 25) { /* whether it works is the kernel's choice */
        madvise(base + first * PAGE, count * PAGE, advice);
        return;
    }
    if (advice == MADV_POPULATE_READ || advice == MADV_POPULATE_WRITE)
        count = count < 256 ? count : 256;
    say("madvise %zu %zu %d: %s\n", first, count, advice, result(madvise(base + first * PAGE, count * PAGE, advice)));
    if (advice == MADV_FREE) /* what remains of it is the kernel's choice */
        say("and drop: %s\n", result(madvise(base + first * PAGE, count * PAGE, MADV_DONTNEED)));
}

static void remap(size_t first, size_t count) {
    size_t new_count = ANY(0, 1, 2) == 0 ? 1 + below(2 * count) : count, target = below(NR_PAGES - new_count);
    int flags = ANY(0, MREMAP_MAYMOVE | MREMAP_FIXED, MREMAP_MAYMOVE | MREMAP_FIXED,
                    MREMAP_MAYMOVE | MREMAP_FIXED | 4 /* DONTUNMAP */, 4, MREMAP_FIXED, 8);
    if (first + new_count > NR_PAGES)
        return; /* beyond the area that is looked at */
    char *to = base + target * PAGE;
    if (below(3) == 0) /* near its place, perhaps over it */
        to = base + (first < NR_PAGES - new_count ? first + below(NR_PAGES - new_count - first < 9 ? 1 : 9) : target) * PAGE;
    if (below(40) == 0)
        to += 8;
    target = (size_t)(to - base);
    if (new_count == count && below(8) == 0)
        to = (char *)((uintptr_t)1 << 47); /* beyond all addresses */
    void *moved = mremap(base + first * PAGE, count * PAGE, new_count * PAGE, flags, to);
    say("mremap %zu %zu %zu %x %zu: %s\n", first, count, new_count, flags, target, result(at(moved)));
}

/* The kernel reads and writes the program's memory. */
static void in_the_kernel(size_t first, size_t count, size_t second) {
    size_t offset = below(PAGE), len = (count < 15 ? count : 15) * PAGE - below(PAGE);
    char *there = base + first * PAGE + offset;
    struct iovec parts[2] = {{there, len / 3}, {base + second * PAGE, len / 3}};
    static char sink[1 << 16];
    long done;
    switch (below(6)) {
    case 0:
        done = write(ends[1], there, len);
        say("write %zu %zu %zu: %s", first, offset, len, result(done));
        break;
    case 1:
        done = writev(ends[1], parts, 2);
        say("writev %zu %zu %zu: %s", first, offset, len, result(done));
        break;
    case 2:
        say("pread %zu %zu %zu: %s\n", first, offset, len, result(pread(file, there, len, (off_t)(below(20) * PAGE))));
        return;
    case 3:
        say("preadv %zu %zu %zu: %s\n", first, offset, len, result(preadv(file, parts, 2, 0)));
        return;
    case 4:
        say("pwrite %zu %zu %zu: %s\n", first, offset, len, result(pwrite(file, there, len, (off_t)(below(20) * PAGE))));
        return;
    default: {
        int pair[2] = {-1, -1};
        long made = syscall(SYS_pipe2, there, 0);
        say("pipe2 %zu %zu: %s\n", first, offset, made ? result(made) : "made");
        if (made == 0) {
            memcpy(pair, there, sizeof pair);
            close(pair[0]), close(pair[1]);
            memset(there, 0, sizeof pair); /* the numbers may differ */
        }
        return;
    }
    }
    uint64_t sum = 0;
    for (long left = done; left > 0;) {
        long got = read(ends[0], sink, sizeof sink);
        CHECK(got > 0);
        for (long i = 0; i < got; i++)
            sum = sum * 31 + (unsigned char)sink[i];
        left -= got;
    }
    say(" %llx\n", (unsigned long long)sum);
}

/* Pages referred to by a pipe, and read from it. */
static void refer(size_t first, size_t count) {
    struct iovec part = {base + first * PAGE + below(PAGE / 8) * 8, (count < 8 ? count : 8) * PAGE - PAGE};
    static char sink[1 << 16];
    uint64_t sum = 0;
    long given = vmsplice(ends[1], &part, 1, SPLICE_F_NONBLOCK);
    say("vmsplice %zu %zu: %s", first, part.iov_len, result(given));
    for (long left = given; left > 0;) {
        long got = read(ends[0], sink, sizeof sink);
        CHECK(got > 0);
        for (long i = 0; i < got; i++)
            sum = sum * 31 + (unsigned char)sink[i];
        left -= got;
    }
    say(" %llx\n", (unsigned long long)sum);
}

static void wipe(void *at) {
    memset(at, 0, PAGE);
}

/* Structures of the kernel's, written to or read from the program's memory. */
static void structures(size_t first) {
    char *there = base + first * PAGE + below(PAGE / 8 - 64) * 8; /* all of it in a page that is written below */
    int which = (int)below(8), pair[2] = {-1, -1};
    struct timespec soon = {0, 1};
    long done = -1;
    if (which == 0)
        done = syscall(SYS_fstat, file, there);
    else if (which == 1)
        done = syscall(SYS_clock_gettime, CLOCK_MONOTONIC, there);
    else if (which == 2)
        done = syscall(SYS_getcwd, there, 200) > 0;
    else if (which == 3)
        done = syscall(SYS_futex, there, 128 /* WAIT, PRIVATE */, 0x7654321, &soon, NULL, 0);
    else if (which == 4)
        done = syscall(SYS_poll, there, 3, 0) >= 0;
    else if (which == 5)
        done = syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, there, 8);
    else if (which == 6)
        done = syscall(SYS_uname, there);
    else if (syscall(SYS_socketpair, AF_UNIX, SOCK_DGRAM, 0, pair) == 0) {
        done = send(pair[0], there, 3000, MSG_DONTWAIT);
        say("sent %s, ", result(done));
        done = recv(pair[1], base + first * PAGE, 4000, MSG_DONTWAIT);
    }
    say("structure %d at %zu: %s\n", which, first, result(done));
    if (pair[0] >= 0)
        close(pair[0]), close(pair[1]);
    struct page page = at_page(first);
    if (which < 3 || which == 6) { /* what these write differs between runs */
        (void)can(wipe, base + first * PAGE);
        (void)can(store_words, &page);
        madvise(base + first * PAGE, 2 * PAGE, MADV_DONTNEED);
    }
}

/* The break, relative to where it was. */
static void move_break(void) {
    static char *start;
    char *now = sbrk(0);
    if (!start)
        start = now;
    long by = (long)below(600) * (long)PAGE;
    if (now > start && below(2))
        by = -(long)below((size_t)(now - start) + 1);
    long moved = sbrk(by) == (void *)-1 ? -1 : by;
    say("sbrk %ld: %s", by, result(moved));
    if (moved > 0) {
        int zero = 1;
        for (char *at = now; at < now + by; at += PAGE)
            zero &= *at == 0, *at = 7;
        say(" zero %d", zero);
    }
    say(" at %zu\n", (size_t)((char *)sbrk(0) - start));
}

static uint64_t sample(void) {
    uint64_t hash = 0;
    for (size_t number = 0; number < NR_PAGES; number += 61) {
        struct page page = at_page(number);
        if (!can(add_words, &page))
            page.sum = (uint64_t)(1000 + caught.si_signo * 16 + caught.si_code);
        hash = (hash ^ page.sum) * 1099511628211ull;
    }
    return hash;
}

static int in_clone(void *page) {
    store((size_t)page, 4711);
    return 7;
}

static void say_end(pid_t child) {
    int status = -1;
    pid_t ended = child < 0 ? child : waitpid(child, &status, 0);
    say(" %s %x\n", child < 0 ? result(-1) : ended == child ? "ended" : "lost", status);
}

/* A child finds what was there at the fork, whatever its parent writes, and writes for itself. */
static void family(size_t first, size_t count) {
    static char stack[1 << 16] __attribute__((aligned(16)));
    char *words = base + first * PAGE;
    const int which = ANY(0, 0, 1, 2, 3);
    of_child->hash = of_child->may_go = 0;
    pid_t child = -1;
    if (which == 0) {
        child = fork();
        if (child == 0) {
            static char unsaid[1 << 16]; /* the parent's text is shared */
            said = unsaid, said_len = 0;
            while (!of_child->may_go)
                usleep(100);
            for (size_t page = first; page < first + count; page += 1 + count / 16)
                store(page, 99);
            of_child->hash = sample();
            _exit(3);
        }
        for (size_t page = first; page < first + count; page += 1 + count / 16)
            store(page, state - page);
        of_child->may_go = 1;
    } else if (which == 1) {
        child = vfork();
        if (child == 0) {
            execl("/bin/true", "true", NULL);
            _exit(9);
        }
    } else if (which == 2)
        child = clone(in_clone, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, (void *)first);
    else if ((child = fork()) == 0) {
        struct page page = at_page(first);
        if (can(store_words, &page)) {
            strcpy(words, "exit 5");
            execl("/bin/sh", "sh", "-c", words, NULL);
        }
        _exit(6);
    }
    say("child %d %zu %zu:", which, first, count);
    say_end(child);
    say("of the child: %llx\n", (unsigned long long)of_child->hash);
}

static void lock(size_t first, size_t count) {
    char *there = base + first * PAGE;
    count = count < 32 ? count : 32;
    if (below(3))
        say("mlock %zu %zu: %s\n", first, count, result(mlock(there, count * PAGE)));
    else
        say("mlock2 %zu %zu: %s\n", first, count, result(syscall(SYS_mlock2, there, count * PAGE, ANY(0, 1, 1, 2))));
    if (below(2))
        remap(first, count);
    if (below(3) == 0)
        say("munlock: %s\n", result(munlock(there, count * PAGE / 2)));
    say("munlockall: %s\n", result(munlockall()));
}

static void remote(size_t first, size_t count) {
    static char sink[8 * PAGE];
    size_t len = (count < 8 ? count : 8) * PAGE - 100;
    struct iovec here = {sink, len}, there = {base + first * PAGE + 50, len};
    memset(sink, 0, sizeof sink);
    long done;
    if (below(2))
        done = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
    else {
        int memory = open("/proc/self/mem", O_RDONLY);
        done = pread(memory, sink, len, (off_t)(uintptr_t)there.iov_base);
        close(memory);
    }
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof sink; i++)
        sum = sum * 31 + (unsigned char)sink[i];
    say("remote %zu %zu: %s %llx\n", first, len, result(done), (unsigned long long)sum);
}

/* Pages that any system call may be given, unless it may be given all. */
static void accessible(size_t *first, size_t *count, size_t *second) {
    if (allowed & BOLD)
        return;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | reserves;
    *first = 0, *count = 32, *second = 16;
    CHECK(mmap(base, *count * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == base);
}

static void act(void) {
    size_t bounds[] = {3, 40, 700, 4000};
    size_t count = 1 + below(bounds[below(4)]), first = below(NR_PAGES - count);
    char *there = base + first * PAGE;
    size_t second = below(NR_PAGES - 16);
    switch (below(22)) {
    case 0:
    case 1:
    case 2: {
        int access = any_protection();
        say("mprotect %zu %zu %d: %s\n", first, count, access, result(mprotect(there, count * PAGE, access)));
        break;
    }
    case 3:
        say("munmap %zu %zu: %s\n", first, count, result(munmap(there, count * PAGE)));
        break;
    case 4:
    case 5:
    case 6:
        map_anew(first, count);
        break;
    case 7:
    case 8:
        advise(first, count);
        break;
    case 9:
        lock(first, count);
        break;
    case 10:
    case 11:
        if (!advises_huge)
            remap(first, count);
        break;
    case 12:
        accessible(&first, &count, &second);
        in_the_kernel(first, count, second);
        break;
    case 13:
        accessible(&first, &count, &second);
        structures(first);
        break;
    case 14:
        move_break();
        break;
    case 15:
        map_anywhere(count);
        break;
    case 16:
        if (allowed & FAMILY)
            family(first, count);
        break;
    case 17:
        if (allowed & REMOTE)
            remote(first, count);
        break;
    case 18:
        accessible(&first, &count, &second);
        if (allowed & REFERRED)
            refer(first, count);
        break;
    case 19: {
        off_t pages = (off_t)below(2 * FILE_PAGES);
        say("ftruncate %ld: %s\n", (long)pages, result(ftruncate(file, pages * (off_t)PAGE)));
        break;
    }
    default:
        for (size_t page = first; page < first + count; page += 1 + count / 64)
            store(page, state + page);
    }
    load(first), load(first + count - 1), load(first ? first - 1 : 0), load(first + count);
}

static void *act_elsewhere(void *argument) {
    act();
    return argument;
}

static void step(void) {
    pthread_t other;
    if (below(8))
        act();
    else
        CHECK(pthread_create(&other, NULL, act_elsewhere, NULL) == 0 && pthread_join(other, NULL) == 0);
    for (int touch = 0; touch < 5; touch++) {
        store(below(NR_PAGES), state);
        load(below(NR_PAGES));
    }
}

/* Touches the area all the time, whatever is there. */
static volatile int is_over;

static void *touch(void *argument) {
    uint64_t seed = 7;
    while (!is_over) {
        seed = seed * 6364136223846793005ull + 1442695040888963407ull;
        struct page page = at_page((seed >> 33) % NR_PAGES);
        (void)can(load_words, &page);
        usleep(200); /* leaves the CPU to the steps */
    }
    return argument;
}

int main(int nr_arguments, char **arguments) {
    CHECK(nr_arguments > 4);
    size_t first = strtoul(arguments[1], NULL, 10), count = strtoul(arguments[2], NULL, 10);
    size_t steps = strtoul(arguments[3], NULL, 10);
    allowed = atoi(arguments[4]);
    for (char *at = nr_arguments > 5 ? arguments[5] : NULL; at && *at; at += *at == ',')
        is_left_out[strtoul(at, &at, 10) % STEPS] = 1;
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_NODEFER};
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGBUS, &action, NULL) == 0);
    said = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    of_child = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(said != MAP_FAILED && of_child != MAP_FAILED && pipe(ends) == 0);
    const char *folder = getenv("TEST_FOLDER");
    CHECK(folder);
    file = open(folder, O_TMPFILE | O_RDWR, 0600);
    CHECK(file >= 0);
    for (size_t seed = first; seed < first + count; seed++) {
        reserves = seed % 4 ? 0 : MAP_NORESERVE;
        advises_huge = seed % 5 == 0;
        CHECK(ftruncate(file, 0) == 0 && ftruncate(file, FILE_PAGES * PAGE) == 0);
        for (uint64_t page = 0; page < FILE_PAGES; page++)
            CHECK(pwrite(file, &page, 8, (off_t)(page * PAGE)) == 8);
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | reserves;
        CHECK(mmap(base, NR_PAGES * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) == base);
        for (size_t page = 0; page < NR_PAGES; page++)
            store(page, page + 1);
        pthread_t other;
        is_over = 0;
        CHECK(pthread_create(&other, NULL, touch, NULL) == 0);
        for (size_t done = 0; done < STEPS && done < steps; done++) {
            if (is_left_out[done])
                continue;
            state = ((uint64_t)seed * 1000 + done + 1) * 88172645463325252ull;
            below(2), below(2), below(2);
            say("seed %zu step %zu: ", seed, done);
            step();
        }
        say_all();
        is_over = 1;
        CHECK(pthread_join(other, NULL) == 0);
        CHECK(write(1, said, said_len) == (ssize_t)said_len);
        said_len = 0;
    }
    return 0;
}
