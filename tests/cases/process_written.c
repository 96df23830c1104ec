// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// MAPPERS: move copy
// process_vm_writev to the process's own memory and a child's, while threads advise that both ends leave RAM. By the C
// library and by the system call's number; and its memory is written by way of /proc/PID/mem.
#include "check.h"
#include <fcntl.h>
#include <sys/uio.h>
#define LEN (6 * MIB)
static char *from, *to;
static volatile int is_over;
static void *advise(void *range) {
    char *first = (char *)((uintptr_t)range & -PAGE);
    while (!is_over) madvise(first, LEN + PAGE, MADV_PAGEOUT), usleep(200);
    return NULL;
}
static void write_all(pid_t process, int by_number) {
    for (size_t at = 0; at < LEN;) {
        // Neither end lies at a page's begin.
        size_t first = (LEN - at) / 3;
        struct iovec source = {from + at, LEN - at};
        struct iovec parts[2] = {{to + at, first}, {to + at + first, LEN - at - first}};
        long done = by_number ? syscall(SYS_process_vm_writev, process, &source, 1, parts, 2, 0)
                              : process_vm_writev(process, &source, 1, parts, 2, 0);
        CHECK(done > 0, "%ld", done);
        if (done <= 0) return;
        at += done;
    }
}
static void write_file(pid_t process) {
    char path[40];
    sprintf(path, "/proc/%d/mem", process);
    int file = open(path, O_RDWR);
    struct iovec halves[2];
    CHECK(pwrite(file, from, LEN / 2, (uintptr_t)to) == LEN / 2, "first half");
    for (size_t at = LEN / 2; at < LEN; at += MIB) {
        halves[0] = (struct iovec){from + at, 1000}, halves[1] = (struct iovec){from + at + 1000, MIB - 1000};
        long done = pwritev(file, halves, 2, (uintptr_t)(to + at));
        CHECK(done == MIB, "%ld at %zu", done, at);
    }
    close(file);
}
// In direct mode a child can bring memory in for others once its own has run short.
static void wait_for(pid_t process) {
    static char copy[LEN];
    struct iovec target = {copy, LEN}, source = {to, LEN};
    int whole = 0;
    for (int i = 0; i < 300 && whole < 5; i++, usleep(30000))
        whole += process_vm_readv(process, &target, 1, &source, 1, 0) == LEN;
    CHECK(whole == 5, "%d whole reads", whole);
}
static long wrong_words(long number) {
    long wrong = 0;
    for (size_t at = 0; at < LEN; at += 8) wrong += *(uint64_t *)(to + at) != at * 3 + number;
    return wrong;
}
int main(void) {
    int go[2], done[2];
    long wrong;
    char byte = 0;
    uint64_t word = 5, there = 0;
    struct iovec source = {&word, sizeof word}, target = {&there, sizeof there};
    CHECK(process_vm_writev(getpid(), &source, 1, &target, 1, 0) == 8 && there == 5, "while all fits");
    from = anonymous(LEN + PAGE) + 120, to = anonymous(LEN + PAGE) + 2040;
    char *other = anonymous(48 * MIB);
    CHECK(pipe(go) == 0 && pipe(done) == 0, "pipes");
    pid_t child = fork();
    for (int is_child = child == 0; is_child;) {
        pthread_t thread;
        memset(other, 1, 48 * MIB);
        pthread_create(&thread, NULL, advise, to);
        if (write(done[1], &wrong, sizeof wrong) < 0) _exit(1);
        for (int round = 0; round < 3; round++) {
            if (read(go[0], &byte, 1) != 1) _exit(2);
            wrong = wrong_words(100 + round);
            if (write(done[1], &wrong, sizeof wrong) < 0) _exit(3);
        }
        _exit(0);
    }
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, advise, i ? to : from);
    CHECK(read(done[0], &wrong, sizeof wrong) == sizeof wrong, "child");
    wait_for(child);
    for (int round = 0; round < 5; round++) {
        long number = round < 2 ? round : 98 + round;
        memset(other, round, 48 * MIB);
        for (size_t at = 0; at < LEN; at += 8) *(uint64_t *)(from + at) = at * 3 + number;
        if (round < 4)
            write_all(round < 2 ? getpid() : child, round % 2);
        else
            write_file(child);
        wrong = round < 2 ? wrong_words(number) : -1;
        if (round >= 2)
            CHECK(write(go[1], &byte, 1) == 1 && read(done[0], &wrong, sizeof wrong) == sizeof wrong, "child");
        CHECK(wrong == 0, "round %d: %ld words", round, wrong);
    }
    is_over = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    waitpid(child, NULL, 0);
    DONE;
}
