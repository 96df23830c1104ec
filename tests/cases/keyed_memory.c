// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M 96M 160M
// LIMIT_S: 60
// System calls by an instruction of the program's own on memory with a protection key: they succeed with the rights of
// the thread, in RAM or not, and fail without. A key that such a call allocates comes with its rights.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define PAGE 4096
#define OTHER_BYTES (64 * MIB)
#define KEYED_BYTES (4 * MIB)

static char *keyed, *other;
static int has_left;

static void check(int is_right, const char *what) {
    if (is_right) return;
    printf("wrong: %s%s\n", what, has_left ? ", which has left RAM" : "");
    fflush(stdout);
    _exit(1);
}

static long call(long number, long a, long b, long c, long d) {
    register long fourth asm("r10") = d;
    long result;
    asm volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth) : "rcx", "r11", "memory");
    return result;
}

static void *map(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(at != MAP_FAILED, "mmap");
    return at;
}

/* Uses more than the budget, so that the keyed memory leaves RAM. */
static void use_other_memory(void) {
    for (int round = 0; round < 2 && has_left; round++)
        for (size_t at = 0; at < OTHER_BYTES; at += PAGE) other[at] += 1;
}

static void made_with_rights(void) {
    int zeros = open("/dev/zero", O_RDONLY);
    use_other_memory();
    check(call(SYS_read, zeros, (long)keyed + PAGE, MIB, 0) == MIB, "read");
    use_other_memory();
    check(call(SYS_getcwd, (long)keyed + PAGE, 4000, 0, 0) > 0 && keyed[PAGE] == '/', "getcwd");
    use_other_memory();
    struct timespec *time = (void *)(keyed + 64);
    check(call(SYS_clock_gettime, CLOCK_REALTIME, (long)time, 0, 0) == 0 && time->tv_sec > 1000, "clock_gettime");
    use_other_memory();
    check(call(SYS_rt_sigprocmask, SIG_BLOCK, 0, (long)keyed + 64, 8) == 0, "rt_sigprocmask");
    struct iovec *list = (void *)(keyed + 128);
    *list = (struct iovec){keyed + 2 * MIB, 10000};
    use_other_memory();
    check(call(SYS_readv, zeros, (long)list, 1, 0) == 10000, "readv");
    strcpy(keyed + 256, "/dev/null");
    use_other_memory();
    long file = call(SYS_open, (long)keyed + 256, O_WRONLY, 0, 0);
    check(file > 0, "open");
    use_other_memory();
    check(call(SYS_write, file, (long)keyed, KEYED_BYTES, 0) == KEYED_BYTES, "write");
    close((int)file), close(zeros);
}

static void made_without(int key) {
    int zeros = open("/dev/zero", O_RDONLY), null = open("/dev/null", O_WRONLY);
    pkey_set(key, PKEY_DISABLE_WRITE);
    check(call(SYS_read, zeros, (long)keyed, 64, 0) == -EFAULT, "read without the right to write");
    check(call(SYS_getcwd, (long)keyed, 4000, 0, 0) == -EFAULT, "getcwd without the right to write");
    pkey_set(key, PKEY_DISABLE_ACCESS);
    check(call(SYS_open, (long)keyed + 256, O_WRONLY, 0, 0) == -EFAULT, "open without rights");
    check(pkey_get(key) == PKEY_DISABLE_ACCESS, "rights after calls");
    pkey_set(key, 0);
    close(null), close(zeros);
}

/* mprotect leaves memory its key, and with it what may be done there. */
static void reserved_with(int key) {
    int zeros = open("/dev/zero", O_RDONLY);
    char *at = mmap(NULL, MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(pkey_mprotect(at, MIB, PROT_NONE, key) == 0 && mprotect(at, MIB, PROT_READ | PROT_WRITE) == 0, "mprotect");
    pkey_set(key, PKEY_DISABLE_WRITE);
    errno = 0;
    check(read(zeros, at, 64) == -1 && errno == EFAULT, "read into memory that was reserved with a key");
    pkey_set(key, 0);
    close(zeros);
}

int main(void) {
    int key = (int)call(SYS_pkey_alloc, 0, 0, 0, 0);
    if (key < 0) {
        puts("there are no protection keys\nok");
        return 0;
    }
    check(pkey_get(key) == 0, "rights to a new key");
    keyed = map(2 * KEYED_BYTES), other = map(OTHER_BYTES);
    memset(keyed, 1, 2 * KEYED_BYTES);
    check(call(SYS_pkey_mprotect, (long)keyed, KEYED_BYTES, PROT_READ | PROT_WRITE, key) == 0, "pkey_mprotect");
    for (has_left = 0; has_left < 2; has_left++) {
        made_with_rights();
        made_without(key);
    }
    reserved_with(key);
    int another = (int)call(SYS_pkey_alloc, 0, PKEY_DISABLE_WRITE, 0, 0);
    check(another > 0 && pkey_get(another) == PKEY_DISABLE_WRITE && pkey_get(key) == 0, "rights to another key");
    puts("ok");
    return 0;
}
