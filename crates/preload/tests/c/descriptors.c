// Programs that close, replace and list descriptors that they did not open, with more memory than the budget. Each
// scenario prints the same with and without the library, and exits with status 0. The output contains no numbers that
// depend on the library.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES (64ul << 20)
#define WORDS (BYTES / 8)

static volatile uint64_t *words;

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

// A system call instruction, as in a program that does not use the C library.
static long inline_call(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}

static uint64_t value(uint64_t at) { return at * 0x9e3779b97f4a7c15ull | 1; }

static void fill(void) {
    for (uint64_t at = 0; at < WORDS; at++) words[at] = value(at);
}

static void verify(const char *when) {
    uint64_t wrong = 0, zeros = 0;
    for (uint64_t at = 0; at < WORDS; at++) {
        wrong += words[at] != value(at);
        zeros += words[at] == 0;
    }
    if (wrong > 0) {
        fprintf(stderr, "%s: %lu of %lu words are wrong, %lu of them zero\n", when, wrong, WORDS, zeros);
        exit(1);
    }
    printf("%s: all words are right\n", when);
    fflush(stdout);
}

// Writes to all of the memory, so that all of it must be swapped out again.
static void change(void) {
    for (uint64_t at = 0; at < WORDS; at += 512) words[at] = value(at);
}

static int open_log(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", getenv("TEST_FOLDER") ? getenv("TEST_FOLDER") : "/tmp", name);
    int log = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (log < 0) fail(path);
    unlink(path);
    return log;
}

static void check_log(int log, const char *text) {
    struct stat about;
    char found[256] = "";
    if (fstat(log, &about) < 0 || pread(log, found, sizeof found - 1, 0) < 0) fail("the log");
    if ((size_t)about.st_size != strlen(text) || strcmp(found, text) != 0) {
        fprintf(stderr, "the log has %ld bytes: %.40s\n", (long)about.st_size, found);
        exit(1);
    }
    printf("the log holds what was written\n");
}

// The highest open number, from the kernel's list.
static int highest(void) {
    DIR *list = opendir("/proc/self/fd");
    int most = 2;
    for (struct dirent *entry; (entry = readdir(list)) != NULL;)
        if (atoi(entry->d_name) > most) most = atoi(entry->d_name);
    closedir(list);
    return most;
}

static void numbers_are_the_programs(void) {
    int first = open("/dev/null", O_RDONLY);
    printf("the first file is %d\n", first);
    close(first);
}

static void close_loop(void) {
    long most = sysconf(_SC_OPEN_MAX) > 100000 ? 100000 : sysconf(_SC_OPEN_MAX);
    for (int number = 3; number < most + 64; number++) close(number);
    verify("after a loop of close");
    change();
    verify("and again");
}

static void close_from(void) {
    closefrom(3);
    verify("after closefrom");
    if (close_range(3, ~0u, 0) < 0) fail("close_range");
    if (close_range(3, ~0u, CLOSE_RANGE_CLOEXEC) < 0) fail("close_range");
    if (syscall(SYS_close_range, 3, ~0u, CLOSE_RANGE_UNSHARE) < 0) fail("close_range by number");
    change();
    verify("after close_range");
}

// Every open number, as from /proc/self/fd. Those that are not the program's look closed.
static void one_by_one(void) {
    int opened = 0, log = open_log("one-by-one");
    for (int number = 3, most = highest(); number <= most; number++) {
        if (number == log) continue;
        opened += close(number) == 0;
        if (dup(number) >= 0 || errno != EBADF) fail("dup of what is not open");
        if (fcntl(number, F_GETFD) >= 0 || errno != EBADF) fail("fcntl of what is not open");
        if (fcntl(number, F_DUPFD, 3) >= 0 || errno != EBADF) fail("F_DUPFD of what is not open");
        if (syscall(SYS_close, number) == 0 || errno != EBADF) fail("close by number of what is not open");
        if (dup2(number, 200) >= 0 || errno != EBADF) fail("dup2 of what is not open");
    }
    printf("%d of them were open\n", opened);
    verify("after closing what is listed");
    change();
    verify("and again");
}

static void replace(void) {
    int log = open_log("replaced");
    if (write(log, "begin\n", 6) != 6) fail("write");
    for (int number = 3; number < 32; number++)
        if (number != log && dup2(log, number) != number) fail("dup2");
    for (int number = 3; number < 32; number++)
        if (number != log && dup3(log, number, O_CLOEXEC) != number) fail("dup3");
    for (int number = 32, most = highest(); number <= most; number++) dup2(log, number);
    verify("after dup2");
    change();
    verify("and again");
    if (write(log, "end\n", 4) != 4) fail("write");
    check_log(log, "begin\nend\n");
}

static void inline_close(void) {
    for (long number = 3, most = highest(); number <= most; number++) inline_call(SYS_close, number, 0, 0);
    verify("after inline close");
    change();
    verify("and again");
    inline_call(SYS_close_range, 3, ~0u, 0);
    change();
    verify("after inline close_range");
}

static void inline_replace(void) {
    int log = open_log("inline"), most = highest();
    if (write(log, "begin\n", 6) != 6) fail("write");
    for (long number = 3; number <= most; number++)
        if (number != log) inline_call(SYS_dup2, log, number, 0);
    verify("after inline dup2");
    change();
    verify("and again");
    if (write(log, "end\n", 4) != 4) fail("write");
    check_log(log, "begin\nend\n");
}

static void *touch(void *unused) {
    (void)unused;
    verify("on another thread");
    return NULL;
}

static void own_table(void) {
    if (unshare(CLONE_FILES) < 0) fail("unshare");
    closefrom(3);
    verify("with a table of its own");
    pthread_t thread;
    if (pthread_create(&thread, NULL, touch, NULL) != 0) fail("pthread_create");
    pthread_join(thread, NULL);
}

// A child that shares the memory closes everything that it inherited, in a way that no library sees, and then uses
// memory that is not in RAM.
static void vfork_child(void) {
    pid_t child = vfork();
    if (child == 0) {
        for (long number = 3; number < 20100; number++) inline_call(SYS_close, number, 0, 0);
        for (uint64_t at = 0; at < WORDS; at += 512)
            if (words[at] != value(at)) _exit(1);
        _exit(0);
    }
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) != child) fail("vfork");
    printf("the child of vfork ended with %d\n", status);
    verify("after vfork");
}

static int ended_with(pid_t child) {
    int status = -1;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) fail("fork");
    return WEXITSTATUS(status);
}

// A child that closes everything it did not open finds its memory all the same, as its parent does, and so does a
// child of it, and a child for which the C library runs no handlers.
static void forked_child(void) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        for (long number = 3; number < 20100; number++) inline_call(SYS_close, number, 0, 0);
        verify("in a child");
        change();
        verify("and again");
        pid_t grandchild = fork();
        if (grandchild == 0) {
            close_range(3, ~0u, 0);
            verify("in its child");
            _exit(0);
        }
        _exit(ended_with(grandchild));
    }
    printf("the child ended with %d\n", ended_with(child));
    fflush(stdout);
    child = _Fork();
    if (child == 0) {
        verify("in a child of _Fork");
        fflush(stdout);
        _exit(0);
    }
    printf("that child ended with %d\n", ended_with(child));
    verify("after fork");
    change();
    verify("and again");
}

// A child lives. If it may open a file of its own for that, it finds its memory, and can change it.
static void check_child(int has_swap) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        if (has_swap) {
            verify("in a child");
            change();
            verify("and again");
        }
        _exit(5);
    }
    printf("the child ended with %d\n", ended_with(child));
}

static void no_descriptors_left(void) {
    int opened = 0, number;
    while ((number = open("/dev/null", O_RDONLY)) >= 0) opened++;
    printf("%d files could be open\n", opened);
    if (errno != EMFILE) fail("open");
    change();
    verify("with all descriptors in use");
    check_child(1);
    verify("and after fork");
    change();
    verify("and again");
}

static void other_user(void) {
    if (geteuid() == 0 && (setgroups(0, NULL) < 0 || setgid(65534) < 0 || setuid(65534) < 0)) fail("setuid");
    if (prctl(PR_SET_DUMPABLE, 0) < 0) fail("prctl");
    check_child(0);
    verify("as another user");
    change();
    verify("and again");
}

static void other_root(void) {
    if (chroot("/var/empty") < 0 && mkdir("/tmp/folioswap-empty", 0700) == 0) {}
    if (chroot("/tmp/folioswap-empty") < 0 || chdir("/") < 0) fail("chroot");
    check_child(0);
    verify("in another root");
    change();
    verify("and again");
}

static const struct {
    const char *name;
    void (*run)(void);
} scenarios[] = {
    {"numbers", numbers_are_the_programs}, {"close-loop", close_loop}, {"closefrom", close_from},
    {"listed", one_by_one}, {"replace", replace}, {"inline-close", inline_close}, {"inline-replace", inline_replace},
    {"own-table", own_table}, {"vfork", vfork_child}, {"fork", forked_child}, {"emfile", no_descriptors_left},
    {"setuid", other_user}, {"chroot", other_root},
};

int main(int count, char **arguments) {
    words = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (words == MAP_FAILED) fail("mmap");
    fill();
    for (size_t at = 0; at < sizeof scenarios / sizeof *scenarios; at++)
        if (count > 1 && strcmp(arguments[1], scenarios[at].name) == 0) {
            scenarios[at].run();
            return 0;
        }
    fprintf(stderr, "no such scenario\n");
    return 64;
}
