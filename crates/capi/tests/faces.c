/* Every function of folioswap.h, from several threads, with errors, in the fault mode that is named. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <folioswap.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, folioswap_message()); \
            _exit(1); \
        } \
    } while (0)

#define MIB ((size_t)1 << 20)

static folioswap *pool;

static void *blocks(void *seed) {
    enum { NR = 64 };
    unsigned random = (unsigned)(size_t)seed;
    unsigned char *block[NR] = {0};
    size_t length[NR] = {0};
    for (int round = 0; round < 3000; round++) {
        int at = (random = random * 1103515245 + 12345) >> 16 & (NR - 1);
        size_t size = (random >> 8) % (random % 50 ? 5000 : 3 * MIB);
        if (block[at]) {
            for (size_t i = 0; i < length[at]; i += 97)
                CHECK(block[at][i] == (unsigned char)at);
            if (random & 1 << 20) {
                block[at] = folioswap_realloc(pool, block[at], size + 1);
                for (size_t i = 0; i < length[at] && i <= size; i += 97)
                    CHECK(block[at][i] == (unsigned char)at);
            } else {
                folioswap_free(pool, block[at]);
                block[at] = NULL;
            }
        }
        if (!block[at]) {
            size_t alignment = (size_t)16 << (random >> 5) % 9;
            block[at] = random & 2 ? folioswap_aligned_alloc(pool, alignment, size + 1) : folioswap_calloc(pool, 1, size + 1);
            CHECK(block[at] && (random & 2 ? (size_t)block[at] % alignment : block[at][size]) == 0);
        }
        length[at] = size + 1;
        CHECK(folioswap_usable_size(pool, block[at]) >= length[at]);
        memset(block[at], at, length[at]);
    }
    for (int at = 0; at < NR; at++)
        folioswap_free(pool, block[at]);
    return NULL;
}

static void errors(const char *faults) {
    folioswap_options options = FOLIOSWAP_OPTIONS;
    folioswap *none = NULL;
    CHECK(folioswap_open(&options, &none) == FOLIOSWAP_INVALID && strstr(folioswap_message(), "too small"));
    options.memory_text = "lots";
    CHECK(folioswap_open(&options, &none) == FOLIOSWAP_INVALID && strstr(folioswap_message(), "not a size"));
    options.memory_text = "32M";
    const char *swap[] = {"/no/such/directory/file"};
    options.swap = swap, options.nr_swap = 1;
    CHECK(folioswap_open(&options, &none) == FOLIOSWAP_SWAP);
    options.size = 3;
    CHECK(folioswap_open(&options, &none) == FOLIOSWAP_INVALID && none == NULL);
    options = (folioswap_options)FOLIOSWAP_OPTIONS;
    options.memory_text = "32M", options.faults = faults;
    CHECK(folioswap_open(&options, &pool) == 0);
    CHECK(folioswap_unmap(pool, &options) == FOLIOSWAP_INVALID);
    CHECK(folioswap_advise(pool, &options, 1, FOLIOSWAP_DONTNEED) == FOLIOSWAP_INVALID);
    CHECK(folioswap_map(pool, 0, (void **)&none) == FOLIOSWAP_INVALID && none == NULL);
    CHECK(folioswap_map(pool, (size_t)-1, (void **)&none) == FOLIOSWAP_NO_MEMORY && none == NULL);
    CHECK(folioswap_map(pool, (size_t)1 << 60, (void **)&none) == FOLIOSWAP_NO_MEMORY && none == NULL);
    CHECK(folioswap_resize(pool, UINT64_MAX) == FOLIOSWAP_INVALID && strstr(folioswap_message(), "too large"));
}

/* What each code means in general: seven texts, and one for all other numbers. */
static void texts(void) {
    CHECK(!strcmp(folioswap_error_text(99), "unknown error") && !strcmp(folioswap_error_text(-1), "unknown error"));
    for (int code = FOLIOSWAP_OK; code <= FOLIOSWAP_LOST; code++) {
        CHECK(strlen(folioswap_error_text(code)) > 5 && strcmp(folioswap_error_text(code), folioswap_error_text(99)));
        for (int other = 0; other < code; other++)
            CHECK(strcmp(folioswap_error_text(code), folioswap_error_text(other)));
    }
    CHECK(!strcmp(folioswap_error_text(FOLIOSWAP_LOST + 1), "unknown error") && strlen(folioswap_version()) >= 5);
}

/* What opening a pool returns in a process to which the kernel refuses a system call, and userfaultfd's by ioctl too. */
static int opened_without(unsigned call) {
    struct sock_filter refuse[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call == SYS_userfaultfd ? SYS_ioctl : call, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xaa00 /* USERFAULTFD_IOC_NEW */, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof refuse / sizeof *refuse, refuse};
    pid_t child = fork();
    if (child == 0) {
        folioswap_options options = FOLIOSWAP_OPTIONS;
        folioswap *other;
        options.memory = 16 * MIB;
        CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
        int error = folioswap_open(&options, &other);
        CHECK(strstr(folioswap_message(), call == SYS_userfaultfd ? "userfaultfd is not permitted" : "random bytes"));
        _exit(100 + error);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status) - 100;
}

/* Cuts the swap file that this process has in a directory. It is unlinked, and open under a number of the library's. */
static void cut_file_in(const char *directory) {
    DIR *numbers = opendir("/proc/self/fd");
    int nr_cut = 0;
    for (struct dirent *entry; (entry = readdir(numbers)); ) {
        char link[300], target[300] = {0};
        snprintf(link, sizeof link, "/proc/self/fd/%s", entry->d_name);
        if (readlink(link, target, sizeof target - 1) > 0 && !strncmp(target, directory, strlen(directory))) {
            int fd = open(link, O_WRONLY);
            CHECK(fd >= 0 && ftruncate(fd, 0) == 0 && close(fd) == 0);
            nr_cut++;
        }
    }
    closedir(numbers);
    CHECK(nr_cut == 1);
}

static void lost_content(const char *faults) {
    char directory[] = "/var/tmp/folioswap-faces-XXXXXX", path[60];
    const char *swap[] = {path};
    folioswap_options options = FOLIOSWAP_OPTIONS;
    folioswap *other;
    char *memory;
    int nr_lost = 0;
    CHECK(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/swap:64M", directory);
    options.memory = 16 * MIB, options.swap = swap, options.nr_swap = 1, options.faults = faults;
    CHECK(folioswap_open(&options, &other) == 0 && folioswap_map(other, 48 * MIB, (void **)&memory) == 0);
    memset(memory, 5, 48 * MIB);
    cut_file_in(directory);
    for (char *at = memory; nr_lost == 0 && at < memory + 48 * MIB; at += 2 * MIB) {
        int error = folioswap_hold(other, at, 2 * MIB);
        if (error == 0) {
            CHECK(at[0] == 5 && at[2 * MIB - 1] == 5);
            folioswap_release(other, at, 2 * MIB);
        } else {
            CHECK(error == FOLIOSWAP_LOST && strstr(folioswap_message(), "lost"));
            nr_lost++;
        }
    }
    CHECK(nr_lost > 0);
    folioswap_close(other);
    CHECK(rmdir(directory) == 0);
}

/* Whether an allocation failed with this error number. */
#define FAILS(error, call) (errno = 0, (call) == NULL && errno == (error))

static void allocator_errors(void) {
    const size_t most = (size_t)-1;
    CHECK(FAILS(ENOMEM, folioswap_malloc(pool, most / 2)) && FAILS(ENOMEM, folioswap_malloc(pool, (size_t)1 << 60)));
    CHECK(FAILS(ENOMEM, folioswap_calloc(pool, most, 2)) && FAILS(ENOMEM, folioswap_calloc(pool, 1, most / 2)));
    CHECK(FAILS(ENOMEM, folioswap_aligned_alloc(pool, 64, most / 2)));
    size_t wrong[] = {0, 24, 4 * MIB};
    for (int i = 0; i < 3; i++)
        CHECK(FAILS(EINVAL, folioswap_aligned_alloc(pool, wrong[i], 100)));
    for (size_t size = 5; size < 8 * MIB; size += 3 * MIB) {
        unsigned char *block = folioswap_malloc(pool, size);
        block[size - 1] = 3;
        CHECK(FAILS(ENOMEM, folioswap_realloc(pool, block, most)) && block[size - 1] == 3);
        folioswap_free(pool, block);
    }
    CHECK(FAILS(ENOMEM, folioswap_realloc(pool, NULL, most)));
    void *empty = folioswap_aligned_alloc(pool, 2 * MIB, 0);
    CHECK(empty && (size_t)empty % (2 * MIB) == 0);
    folioswap_free(pool, empty);
    folioswap_free(pool, NULL);
    CHECK(folioswap_usable_size(pool, NULL) == 0);
}

/* Memory of folioswap_map is no block of the allocator, and a block is no mapping. */
static void mappings_and_blocks(void) {
    unsigned char *mapping;
    for (size_t size = 5000; size < 6 * MIB; size += 2 * MIB) {
        CHECK(folioswap_map(pool, size, (void **)&mapping) == 0);
        memset(mapping, 9, size);
        CHECK(folioswap_usable_size(pool, mapping) == size);
        CHECK(FAILS(EINVAL, folioswap_realloc(pool, mapping, 2 * size)) && mapping[size - 1] == 9);
        folioswap_free(pool, mapping);
        CHECK(folioswap_unmap(pool, mapping) == FOLIOSWAP_INVALID); /* it is gone */
        unsigned char *block = folioswap_malloc(pool, size);
        memset(block, 8, size);
        CHECK(folioswap_unmap(pool, block) == FOLIOSWAP_INVALID && strstr(folioswap_message(), "not the start"));
        CHECK(block[0] == 8 && block[size - 1] == 8);
        folioswap_free(pool, block);
    }
}

static void mappings(void) {
    unsigned char *memory;
    CHECK(folioswap_map(pool, 96 * MIB, (void **)&memory) == 0 && (size_t)memory % (2 * MIB) == 0);
    for (size_t i = 0; i < 96 * MIB; i += 4096)
        memory[i] = (unsigned char)(i >> 12);
    CHECK(folioswap_advise(pool, memory, 32 * MIB, FOLIOSWAP_COLD) == 0);
    CHECK(folioswap_prefetch(pool, memory, 8 * MIB) == 0);
    for (int advice = FOLIOSWAP_NORMAL; advice <= FOLIOSWAP_NOHUGEPAGE; advice++)
        CHECK(advice == FOLIOSWAP_DONTNEED || folioswap_advise(pool, memory + 5, 3 * MIB, advice) == 0);
    CHECK(folioswap_advise(pool, memory, 1, 77) == FOLIOSWAP_INVALID);
    CHECK(folioswap_advise(pool, memory + 4096, 4096, FOLIOSWAP_DONTNEED) == 0 && memory[4096] == 0);
    memory[4096] = 1;
    pid_t child = fork();
    if (child == 0) {
        for (size_t i = 0; i < 96 * MIB; i += 4096)
            CHECK(memory[i] == (unsigned char)(i >> 12));
        memset(memory, 7, 96 * MIB);
        _exit(memory[96 * MIB - 1] != 7);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    for (size_t i = 0; i < 96 * MIB; i += 4096 * 16) {
        CHECK(folioswap_hold(pool, memory + i, 4096) == 0);
        CHECK(write(pipes[1], memory + i, 1) == 1);
        folioswap_release(pool, memory + i, 4096);
        unsigned char byte;
        CHECK(read(pipes[0], &byte, 1) == 1 && byte == (unsigned char)(i >> 12));
    }
    CHECK(folioswap_hold(pool, memory, 96 * MIB) == FOLIOSWAP_INVALID);
    /* All holds together: half of the budget of 32 MiB. */
    CHECK(folioswap_hold(pool, memory, 16 * MIB) == 0 && folioswap_hold(pool, memory + MIB, 4 * MIB) == 0);
    CHECK(folioswap_hold(pool, memory + 16 * MIB, 1) == FOLIOSWAP_INVALID);
    CHECK(strstr(folioswap_message(), "less at a time"));
    folioswap_release(pool, memory, 16 * MIB);
    CHECK(folioswap_hold(pool, memory + 16 * MIB, 1) == 0);
    folioswap_release(pool, memory + 16 * MIB, 1);
    folioswap_release(pool, memory + MIB, 4 * MIB);
    folioswap_device device;
    device.size = sizeof device;
    folioswap_stats stats = FOLIOSWAP_STATS;
    CHECK(folioswap_get_stats(pool, &stats) == 0 && stats.size == sizeof stats && stats.swapped_out_bytes > 32 * MIB);
    CHECK(stats.nr_devices == 1 && folioswap_get_device(pool, 0, &device) == 0 && device.written_bytes > 0);
    CHECK(folioswap_get_device(pool, 1, &device) == FOLIOSWAP_INVALID);
    /* An older program knows less of the struct, a newer one more. */
    uint64_t longer[20] = {16};
    CHECK(folioswap_get_stats(pool, (folioswap_stats *)longer) == 0 && longer[0] == 16 && longer[1] && !longer[2]);
    longer[0] = sizeof longer;
    CHECK(folioswap_get_stats(pool, (folioswap_stats *)longer) == 0 && longer[0] == sizeof stats && !longer[19]);
    CHECK(folioswap_resize(pool, 48 * MIB) == 0 && folioswap_resize(pool, 1) == FOLIOSWAP_INVALID);
    CHECK(folioswap_unmap(pool, memory) == 0 && folioswap_unmap(pool, memory) == FOLIOSWAP_INVALID);
}

/* Options of an older program, whose last member is not there, and of a newer one with more members. */
static void other_versions(void) {
    struct {
        folioswap_options known;
        size_t newer[2];
    } options = {FOLIOSWAP_OPTIONS, {0, 0}};
    folioswap *other;
    options.known.memory = 16 * MIB;
    options.known.size = sizeof options;
    CHECK(folioswap_open(&options.known, &other) == 0);
    folioswap_close(other);
    options.newer[1] = 1;
    CHECK(folioswap_open(&options.known, &other) == FOLIOSWAP_INVALID);
    options.known.size = offsetof(folioswap_options, faults);
    options.known.faults = "what this is nobody reads";
    CHECK(folioswap_open(&options.known, &other) == 0);
    folioswap_close(other);
    options.known.size = sizeof options.known.size;
    CHECK(folioswap_open(&options.known, &other) == FOLIOSWAP_INVALID); /* no budget */
    for (size_t size = 0; size < 3; size++) {
        options.known.size = size - 1;
        CHECK(folioswap_open(&options.known, &other) == FOLIOSWAP_INVALID);
    }
}

static volatile int forking;

static void *map_and_advise(void *nothing) {
    while (forking) {
        void *memory;
        CHECK(folioswap_map(pool, MIB, &memory) == 0);
        for (int i = 0; i < 1000; i++)
            CHECK(folioswap_advise(pool, memory, 4096, FOLIOSWAP_NORMAL) == 0);
        CHECK(folioswap_unmap(pool, memory) == 0);
    }
    return nothing;
}

/* A child may use the pool, whatever the other threads did in it when it was forked. */
static void forks_beside_threads(void) {
    pthread_t threads[3];
    forking = 1;
    for (size_t i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, map_and_advise, NULL) == 0);
    for (int i = 0; i < 100; i++) {
        pid_t child = fork();
        if (child == 0) {
            void *memory;
            alarm(10);
            CHECK(folioswap_map(pool, MIB, &memory) == 0 && folioswap_unmap(pool, memory) == 0);
            _exit(0);
        }
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    }
    forking = 0;
    for (size_t i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
}

int main(int argc, char **argv) {
    const char *faults = argc > 1 ? argv[1] : "auto";
    pthread_t threads[4];
    texts();
    CHECK(opened_without(SYS_userfaultfd) == FOLIOSWAP_NOT_PERMITTED);
    CHECK(opened_without(SYS_getrandom) == FOLIOSWAP_SYSTEM);
    lost_content(faults);
    errors(faults);
    CHECK(folioswap_is_monitored(pool) == (strcmp(faults, "direct") != 0));
    allocator_errors();
    mappings();
    mappings_and_blocks();
    other_versions();
    for (size_t i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, blocks, (void *)(i + 1)) == 0);
    for (size_t i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    forks_beside_threads();
    folioswap_close(pool);
    folioswap_close(NULL);
    puts("right");
    return 0;
}
