// EXPECT: exit 0, last line "ok"
// NEEDS: move
// BUDGETS: 24M 96M
/* io_uring: what a request or a registration names in memory that it names is out of RAM; a receive that tells nothing
   of its end; a ring whose descriptor was copied, and one that a child of vfork closed. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include "uring.h"
enum { FUTEX_WAITV_OP = 53, READV_FIXED = 60, WRITEV_FIXED = 61, SOCKET_GET = 2, SOCKET_SET = 3, WORD_OF_32 = 2 };
static int done(int count) {
    CHECK(syscall(SYS_io_uring_enter, ring, count, 1, IORING_ENTER_GETEVENTS, 0, 0) == count);
    CHECK(*cq_head != __atomic_load_n(cq_tail, __ATOMIC_ACQUIRE));
    int result = cqes[*cq_head & *cq_mask].res;
    __atomic_store_n(cq_head, *cq_head + 1, __ATOMIC_RELEASE);
    return result;
}
static char *a, *cold, pattern[8192];
static int file, ends[2];
static void out(void) {
    for (int i = 0; i < 2; i++)
        madvise(a, 64 * M, MADV_PAGEOUT);
}
static void *place(int i) { return a + i * 2 * M + 4096; } /* each in a block of its own */
static int enroll(int what, void *at, unsigned count) { return syscall(SYS_io_uring_register, ring, what, at, count); }
static void registrations(void) {
    char *buffers = place(1);
    struct iovec *list = place(2), *other = place(3);
    list[0] = (struct iovec){buffers, 4096}, list[1] = (struct iovec){buffers + 8192, 4096};
    struct io_uring_rsrc_register *new = place(4);
    *new = (struct io_uring_rsrc_register){.nr = 2, .data = (long)list};
    out();
    CHECK(enroll(IORING_REGISTER_BUFFERS2, new, sizeof *new) == 0);
    other[0] = (struct iovec){buffers + 16384, 4096}, other[1] = (struct iovec){buffers + 32768, 4096};
    struct io_uring_rsrc_update2 *update = place(5);
    *update = (struct io_uring_rsrc_update2){.nr = 2, .data = (long)other};
    out();
    CHECK(enroll(IORING_REGISTER_BUFFERS_UPDATE, update, sizeof *update) == 2);
    out();
    next(IORING_OP_READ_FIXED, file, buffers + 16384, 4096)->off = 4096;
    CHECK(done(1) == 4096 && memcmp(buffers + 16384, pattern + 4096, 4096) == 0);
    CHECK(enroll(IORING_UNREGISTER_BUFFERS, 0, 0) == 0);
    int *files = place(6);
    for (int i = 0; i < 3000; i++)
        files[i] = -1;
    files[2999] = file;
    out();
    if (enroll(IORING_REGISTER_FILES, files, 3000) == 0) { /* or too many for the limit */
        struct io_uring_files_update *first = place(7);
        int *one = place(8);
        *one = file, *first = (struct io_uring_files_update){.fds = (long)one};
        out();
        CHECK(enroll(IORING_REGISTER_FILES_UPDATE, first, 1) == 1);
        *update = (struct io_uring_rsrc_update2){.nr = 1, .offset = 1, .data = (long)one};
        out();
        CHECK(enroll(IORING_REGISTER_FILES_UPDATE2, update, sizeof *update) == 1);
    }
}
static void lists(void) {
    char *buffer = place(1);
    struct iovec whole = {buffer, 65536}, *list = place(2);
    CHECK(enroll(IORING_REGISTER_BUFFERS, &whole, 1) == 0);
    list[0] = (struct iovec){buffer, 4096}, list[1] = (struct iovec){buffer + 8192, 4096};
    memset(buffer, 0, 65536);
    out();
    next(READV_FIXED, file, list, 2);
    int result = done(1);
    if (result != -EINVAL) { /* Linux 6.15 */
        CHECK(result == 8192 && !memcmp(buffer, pattern, 4096) && !memcmp(buffer + 8192, pattern + 4096, 4096));
        out();
        next(WRITEV_FIXED, file, list, 2);
        CHECK(done(1) == 8192);
    }
    CHECK(enroll(IORING_UNREGISTER_BUFFERS, 0, 0) == 0);
}
static int option(int what, int *value) {
    struct io_uring_sqe *one = next(IORING_OP_URING_CMD, ends[0], 0, 0);
    one->off = what, one->addr = (uint64_t)SO_SNDBUF << 32 | SOL_SOCKET;
    one->splice_fd_in = sizeof *value; /* the length; the value's address is the word after it */
    *(uint64_t *)((char *)one + 48) = (long)value;
    return done(1);
}
static void commands(void) {
    int *value = place(3);
    *value = 77777;
    out();
    int result = option(SOCKET_SET, value);
    if (result == -EOPNOTSUPP)
        return; /* before Linux 6.7 */
    CHECK(result == 0);
    *value = 0;
    out();
    CHECK(option(SOCKET_GET, value) == sizeof *value && *value == 2 * 77777);
}
static void quiet(int is_chain) {
    char *buffer = place(9), *sent = place(10);
    memset(buffer, 0, 4096), strcpy(sent, "x");
    out();
    next(IORING_OP_RECV, ends[1], buffer, 100)->flags = IOSQE_CQE_SKIP_SUCCESS | (is_chain ? IOSQE_IO_LINK : 0);
    if (is_chain)
        next(IORING_OP_SEND, ends[1], sent, 1);
    CHECK(syscall(SYS_io_uring_enter, ring, 1 + is_chain, 0, 0, 0, 0) == 1 + is_chain);
    out();
    CHECK(write(ends[0], "hello", 5) == 5);
    if (!is_chain)
        next(IORING_OP_NOP, -1, 0, 0);
    CHECK(done(!is_chain) == is_chain && memcmp(buffer, "hello", 5) == 0);
    CHECK(!is_chain || read(ends[0], pattern, 1) == 1);
}
static void futexes(void) {
    struct { uint64_t value, at; uint32_t flags, reserved; } *list = place(11);
    for (int i = 0; i < 40; i++) {
        uint32_t *word = (void *)(a + 24 * M + i * 65536);
        *word = i;
        list[i].value = i + (i == 39), list[i].at = (long)word, list[i].flags = WORD_OF_32 | FUTEX_PRIVATE_FLAG, list[i].reserved = 0;
    }
    out();
    next(FUTEX_WAITV_OP, 0, list, 40);
    int result = done(1);
    CHECK(result == -EAGAIN || result == -EINVAL);
}
static void reads(void) {
    char *at = place(1);
    memset(at, 1, 4000);
    int zero = open("/dev/zero", O_RDONLY);
    out();
    next(IORING_OP_READ, zero, at, 4000);
    CHECK(done(1) == 4000 && at[0] == 0 && at[3999] == 0);
    close(zero);
}
static void copied(void) {
    for (int how = 0; how < 5; how++) {
        set_up();
        int copy = how == 0 ? fcntl(ring, F_DUPFD_CLOEXEC, 50) : how == 1 ? dup(ring) : how == 2 ? dup2(ring, 60)
                 : how == 3 ? dup3(ring, 61, O_CLOEXEC) : (int)syscall(SYS_fcntl, ring, F_DUPFD, 70);
        CHECK(copy >= 0);
        reads();
        close(ring), ring = copy;
        reads();
        close(ring);
    }
}
static void closed_by_a_child(void) {
    set_up();
    pid_t child = vfork();
    CHECK(child >= 0);
    if (!child) {
        close(ring);
        execl("/bin/true", "true", (char *)0);
        _exit(9);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    reads();
    close(ring);
}
int main(void) {
    a = mmap(0, 64 * M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cold = mmap(0, 200 * M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(a != MAP_FAILED && cold != MAP_FAILED);
    memset(a, 0, 64 * M);
    memset(cold, 1, 200 * M); /* so that the engine runs */
    char name[] = "/var/tmp/uringXXXXXX";
    file = mkstemp(name);
    for (int i = 0; i < 8192; i++)
        pattern[i] = i * 7;
    CHECK(file >= 0 && unlink(name) == 0 && pwrite(file, pattern, 8192, 0) == 8192);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    set_up();
    registrations();
    lists();
    commands();
    quiet(0), quiet(1);
    futexes();
    close(ring);
    copied();
    closed_by_a_child();
    puts("ok");
    return 0;
}
