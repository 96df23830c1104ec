// EXPECT: exit 0, last line "ok"
/* Calls whose structures point to more memory, and futex calls of which the kernel changes the words itself: made with
   all of that in RAM, and again once it has left RAM. Both must return the same. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ul << 20)
#define PAGE 4096ul
#define BESIDE (200 * MIB)
#define ROOM (8 * MIB)
#define LOCK_PI2 13
#define PRIVATE 128
#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

static char *room;
static size_t used;
static int is_cold, calls;

/* A copy on pages of its own, or zeros. */
static void *put(const void *from, size_t len) {
    char *there = room + used;
    used += (len + 2 * PAGE - 1) & ~(PAGE - 1);
    if (from)
        memcpy(there, from, len);
    else
        memset(there, 0, len);
    return there;
}

static void leave(void) {
    for (int twice = 0; is_cold && twice < 2; twice++)
        madvise(room, ROOM, MADV_PAGEOUT);
}

static struct result {
    const char *name;
    long value;
    int error;
} warm[64];

/* A call's result; a positive one may be a number that differs each time. */
static void note(const char *name, long value) {
    struct result now = {name, value > 0 ? 1 : value, value < 0 ? errno : 0};
    if (!is_cold)
        warm[calls] = now;
    else if (now.value != warm[calls].value || now.error != warm[calls].error) {
        printf("FAIL %s: %ld (%s), warm %ld (%s)\n", name, now.value, strerror(now.error), warm[calls].value,
               strerror(warm[calls].error));
        exit(1);
    }
    calls++;
}

#define MAKE(name, call) (leave(), errno = 0, note(name, (long)(call)))

static void filters(void) {
    struct sock_filter steps[200] = {[199] = {BPF_RET | BPF_K, 0, 0, 0xffff}};
    for (int at = 0; at < 199; at++)
        steps[at] = (struct sock_filter){BPF_LD | BPF_W | BPF_ABS, 0, 0, 0};
    struct sock_fprog program = {200, put(steps, sizeof steps)}, *there = put(&program, sizeof program);
    int s = socket(AF_INET, SOCK_DGRAM, 0);
    MAKE("setsockopt", setsockopt(s, SOL_SOCKET, SO_ATTACH_FILTER, there, sizeof program));
    MAKE("setsockopt by number", syscall(SYS_setsockopt, s, SOL_SOCKET, SO_ATTACH_FILTER, there, sizeof program));
    close(s);
}

static void attributes(void) {
    struct { uint64_t value; uint32_t size, flags; } set = {0, 5, 0}, get = {0, 64, 0};
    char path[] = "/var/tmp/cold-pointers-XXXXXX";
    close(mkstemp(path));
    char *there = put(path, sizeof path), *name = put("user.abc", 9), *value = put(NULL, 64), *list = put(NULL, 4096);
    set.value = (uint64_t)put("value", 5), get.value = (uint64_t)value;
    void *of_set = put(&set, sizeof set), *of_get = put(&get, sizeof get);
    MAKE("setxattrat", syscall(463, AT_FDCWD, there, 0, name, of_set, sizeof set));
    MAKE("getxattrat", syscall(464, AT_FDCWD, there, 0, name, of_get, sizeof get));
    MAKE("listxattrat", syscall(465, AT_FDCWD, there, 0, list, 4096));
    MAKE("removexattrat", syscall(466, AT_FDCWD, there, 0, name));
    unlink(path);
    uint32_t *size = put(NULL, 4);
    *size = 4096;
    MAKE("lsm_list_modules", syscall(461, put(NULL, 4096), size, 0));
}

static void futexes(void) {
    struct timespec soon;
    clock_gettime(CLOCK_MONOTONIC, &soon);
    soon.tv_sec += 2;
    uint32_t *word = put(NULL, 4), *other = put(NULL, 4);
    struct timespec *time = put(&soon, sizeof soon);
    MAKE("LOCK_PI2", syscall(SYS_futex, word, LOCK_PI2 | PRIVATE, 0, time, NULL, 0));
    MAKE("UNLOCK_PI", syscall(SYS_futex, word, FUTEX_UNLOCK_PI | PRIVATE, 0, NULL, NULL, 0));
    MAKE("TRYLOCK_PI", syscall(SYS_futex, other, FUTEX_TRYLOCK_PI | PRIVATE, 0, NULL, NULL, 0));
    uint32_t *both[] = {put(NULL, 4), put(NULL, 4)};
    int add = FUTEX_OP(FUTEX_OP_ADD, 5, FUTEX_OP_CMP_EQ, 0);
    MAKE("WAKE_OP", syscall(SYS_futex, both[0], FUTEX_WAKE_OP | PRIVATE, 1, 1, both[1], add));
    note("the second word", *both[1] == 5);
    MAKE("CMP_REQUEUE", syscall(SYS_futex, both[0], FUTEX_CMP_REQUEUE | PRIVATE, 1, 1, both[1], 0));
}

static void programs(void) {
    union bpf_attr about = {.map_type = BPF_MAP_TYPE_HASH, .key_size = 4000, .value_size = 8000, .max_entries = 4};
    void *there = put(&about, sizeof about);
    int map;
    MAKE("bpf map", map = (int)syscall(SYS_bpf, BPF_MAP_CREATE, there, sizeof about));
    char *key = put(NULL, 4000), *value = put(NULL, 8000);
    memset(&about, 0, sizeof about);
    about.map_fd = (uint32_t)map, about.key = (uint64_t)key, about.value = (uint64_t)value;
    there = put(&about, sizeof about);
    MAKE("bpf update", syscall(SYS_bpf, BPF_MAP_UPDATE_ELEM, there, sizeof about));
    MAKE("bpf lookup", syscall(SYS_bpf, BPF_MAP_LOOKUP_ELEM, there, sizeof about));
    close(map);
}

static void children(void) {
    uint64_t about[11] = {0x1000 /* PIDFD */, (uint64_t)put(NULL, 4), 0, 0, SIGCHLD};
    void *there = put(about, sizeof about);
    int status = -1;
    leave();
    errno = 0;
    long child = syscall(435, there, sizeof about);
    if (child == 0)
        _exit(3);
    note("clone3", child);
    waitpid((pid_t)child, &status, 0);
    note("its end", WIFEXITED(status) && WEXITSTATUS(status) == 3);
}

int main(void) {
    char *beside = mmap(NULL, BESIDE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    room = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (beside == MAP_FAILED || room == MAP_FAILED)
        return 2;
    for (size_t at = 0; at < BESIDE; at += PAGE)
        beside[at] = 1;
    for (is_cold = 0; is_cold < 2; is_cold++) {
        used = 0, calls = 0;
        memset(room, 0, ROOM);
        filters(), attributes(), futexes(), programs(), children();
    }
    printf("ok\n");
    return 0;
}
