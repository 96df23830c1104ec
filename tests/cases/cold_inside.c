// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
/* Calls that find something in memory to which words of their structures point, and that is out of RAM: elements of a
   BPF queue, taken once; ids for clone3; many words of a futex_waitv; the policy of an address; registers by ptrace. */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <linux/bpf.h>
#include <linux/futex.h>
#include <linux/mempolicy.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#define M (1ul << 20)
#define COLD (64 * M)
#define CHECK(x) do { if (!(x)) { printf("FAIL line %d: %s (errno %d)\n", __LINE__, #x, errno); exit(1); } } while (0)
enum { FUTEX_WAITV_CALL = 449, WORD_OF_32 = 2 };
static char *a, *cold;
static void out(void) {
    for (size_t i = 0; i < COLD; i += 4096)
        cold[i]++;
    madvise(a, 64 * M, MADV_PAGEOUT);
}
static void *place(int i) { return a + i * 2 * M + 3 * 4096; } /* each in a block of its own */
static int bpf(int what, union bpf_attr *about) { return syscall(SYS_bpf, what, about, sizeof *about); }
static void queue(void) {
    union bpf_attr *about = place(1);
    char *value = place(2);
    memset(about, 0, sizeof *about);
    about->map_type = BPF_MAP_TYPE_QUEUE, about->value_size = 8192, about->max_entries = 4;
    int map = bpf(BPF_MAP_CREATE, about);
    if (map < 0)
        return; /* not permitted, or not in this kernel */
    for (int i = 0; i < 3; i++) {
        memset(about, 0, sizeof *about), memset(value, i + 1, 8192);
        about->map_fd = map, about->value = (long)value;
        out();
        CHECK(bpf(BPF_MAP_UPDATE_ELEM, about) == 0);
    }
    for (int i = 0; i < 3; i++) {
        out();
        CHECK(bpf(BPF_MAP_LOOKUP_AND_DELETE_ELEM, about) == 0 && value[0] == i + 1 && value[8191] == i + 1);
    }
    CHECK(bpf(BPF_MAP_LOOKUP_AND_DELETE_ELEM, about) == -1 && errno == ENOENT);
    close(map);
}
/* All elements of a map at once. A call that fails has counted those that it could do. */
static void batches(void) {
    enum { NR = 400000 };
    union bpf_attr about = {.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 8, .max_entries = NR};
    int map = bpf(BPF_MAP_CREATE, &about);
    if (map < 0)
        return; /* not permitted, or not in this kernel */
    uint32_t *keys = place(1), next;
    uint64_t *values = place(4);
    for (uint32_t i = 0; i < NR; i++)
        keys[i] = i, values[i] = i + 7;
    memset(&about, 0, sizeof about);
    about.batch.keys = (long)keys, about.batch.values = (long)values, about.batch.count = NR, about.batch.map_fd = map;
    out();
    CHECK(bpf(BPF_MAP_UPDATE_BATCH, &about) == 0 && about.batch.count == NR);
    memset(values, 0, NR * sizeof *values);
    about.batch.out_batch = (long)&next;
    out();
    CHECK(bpf(BPF_MAP_LOOKUP_BATCH, &about) == 0 && about.batch.count == NR);
    for (uint32_t i = 0; i < NR; i++)
        CHECK(keys[i] == i && values[i] == i + 7);
    close(map);
}
/* More elements than the map has: the last of each key stays. */
static void repeated(void) {
    enum { NR = 100000, ENTRIES = 1000 };
    union bpf_attr about = {.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 8, .max_entries = ENTRIES};
    int map = bpf(BPF_MAP_CREATE, &about);
    if (map < 0)
        return;
    uint32_t *keys = place(1), key = 5;
    uint64_t *values = place(4), value = 0;
    for (uint32_t i = 0; i < NR; i++)
        keys[i] = i % ENTRIES, values[i] = i;
    memset(&about, 0, sizeof about);
    about.batch.keys = (long)keys, about.batch.values = (long)values, about.batch.count = NR, about.batch.map_fd = map;
    out();
    CHECK(bpf(BPF_MAP_UPDATE_BATCH, &about) == 0 && about.batch.count == NR);
    memset(&about, 0, sizeof about);
    about.map_fd = map, about.key = (long)&key, about.value = (long)&value;
    CHECK(bpf(BPF_MAP_LOOKUP_ELEM, &about) == 0 && value == NR - ENTRIES + 5);
    close(map);
}
static void policy(void) {
    int node = -1;
    char *at = place(3);
    *at = 1;
    out();
    long result = syscall(SYS_get_mempolicy, &node, 0, 0, at, MPOL_F_NODE | MPOL_F_ADDR);
    CHECK((result == 0 && node >= 0) || errno == ENOSYS || errno == EPERM);
    CHECK(result != 0 || *at == 1);
}
static void chosen_id(void) {
    int status;
    pid_t *id = place(4), child = fork();
    CHECK(child >= 0);
    if (!child)
        _exit(0);
    CHECK(waitpid(child, &status, 0) == child);
    pid_t wanted = *id = child > 1000 ? child - 200 : child + 200; /* pid_max may be little above child */
    struct clone_args *about = place(5);
    memset(about, 0, sizeof *about);
    about->exit_signal = SIGCHLD, about->set_tid = (long)id, about->set_tid_size = 1;
    out();
    child = syscall(SYS_clone3, about, sizeof *about);
    if (child == 0)
        _exit(getpid() == wanted ? 0 : 4);
    CHECK(child == wanted || (child == -1 && (errno == EPERM || errno == ENOSYS || errno == EEXIST)));
    CHECK(child == -1 || (waitpid(child, &status, 0) == child && status == 0));
}
static void many_words(void) {
    struct { uint64_t value, at; uint32_t flags, reserved; } *list = place(6);
    for (int i = 0; i < 128; i++) {
        uint32_t *word = (void *)(a + 20 * M + i * 64 * 1024);
        *word = i;
        list[i].value = i + (i == 127), list[i].at = (long)word, list[i].flags = WORD_OF_32 | FUTEX_PRIVATE_FLAG, list[i].reserved = 0;
    }
    out();
    CHECK(syscall(FUTEX_WAITV_CALL, list, 128, 0, 0, 0) == -1 && (errno == EAGAIN || errno == ENOSYS));
    list[127].value = 127;
    struct timespec *limit = place(7);
    CHECK(clock_gettime(CLOCK_MONOTONIC, limit) == 0);
    out();
    CHECK(syscall(FUTEX_WAITV_CALL, list, 128, 0, limit, CLOCK_MONOTONIC) == -1 && (errno == ETIMEDOUT || errno == ENOSYS));
    CHECK(syscall(FUTEX_WAITV_CALL, 8, 128, 0, 0, 0) == -1 && (errno == EFAULT || errno == ENOSYS));
}
static void registers(void) {
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
    for (int by_number = 0; by_number < 2; by_number++) {
        struct iovec *list = place(8);
        list->iov_base = memset(place(9), 0, 8192), list->iov_len = 8192;
        for (int i = 0; i < 2; i++) {
            long kind = i ? NT_X86_XSTATE : NT_PRSTATUS;
            list->iov_len = 8192;
            out();
            long result = by_number ? syscall(SYS_ptrace, PTRACE_GETREGSET, child, kind, list) : ptrace(PTRACE_GETREGSET, child, kind, list);
            CHECK(result == 0 && list->iov_len >= (i ? 500 : sizeof(struct user_regs_struct)));
            CHECK(i || ((struct user_regs_struct *)list->iov_base)->rsp != 0);
            if (i)
                continue;
            list->iov_len = sizeof(struct user_regs_struct);
            out();
            result = by_number ? syscall(SYS_ptrace, PTRACE_SETREGSET, child, kind, list) : ptrace(PTRACE_SETREGSET, child, kind, list);
            CHECK(result == 0);
        }
    }
    kill(child, SIGKILL);
    CHECK(waitpid(child, &status, 0) == child);
}
int main(void) {
    a = mmap(0, 64 * M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cold = mmap(0, COLD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(a != MAP_FAILED && cold != MAP_FAILED);
    memset(a, 0, 64 * M);
    queue();
    batches();
    repeated();
    policy();
    chosen_id();
    many_words();
    registers();
    puts("ok");
    return 0;
}
