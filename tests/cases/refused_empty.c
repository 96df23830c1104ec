// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// Lists of buffers in memory that has left RAM, with one that the kernel refuses though it has no bytes; and lists of
// which only the beginning may be accessed.
#include "cold.h"
#include <sys/socket.h>
#include <sys/uio.h>
#define COLD(call) (send_out(memory, PAGE), errno = 0, (call))
#define REFUSED(call) CHECK(COLD(call) == -1 && errno == EFAULT, #call " at %p", bad)
static char *memory;
static int stream[2], messages[2], ends[2], file, zero;
static void check_empty(char *bad, int is_first) {
    char here[32];
    struct iovec list[3] = {{memory, 10}, {memory + 100, 6}, {memory + 200, 6}}, local = {here, 32};
    list[!is_first] = (struct iovec){bad, 0};
    struct msghdr header = {.msg_iov = list, .msg_iovlen = 3};
    struct mmsghdr headers[2] = {{.msg_hdr = header}, {.msg_hdr = header}};
    REFUSED(readv(file, list, 3));
    REFUSED(writev(file, list, 3));
    REFUSED(preadv(file, list, 3, 0));
    REFUSED(pwritev(file, list, 3, 0));
    REFUSED(preadv2(file, list, 3, -1, 0));
    REFUSED(pwritev2(file, list, 3, -1, 0));
    REFUSED(syscall(SYS_readv, zero, list, 3));
    REFUSED(readv(stream[1], list, 3));
    REFUSED(writev(stream[0], list, 3));
    REFUSED(sendmsg(stream[0], &header, MSG_DONTWAIT));
    REFUSED(recvmsg(stream[1], &header, MSG_DONTWAIT));
    REFUSED(sendmmsg(messages[0], headers, 2, MSG_DONTWAIT));
    REFUSED(recvmmsg(messages[1], headers, 2, MSG_DONTWAIT, NULL));
    REFUSED(vmsplice(ends[1], list, 3, SPLICE_F_NONBLOCK));
    REFUSED(vmsplice(ends[0], list, 3, SPLICE_F_NONBLOCK));
    REFUSED(process_vm_readv(getpid(), list, 3, &local, 1, 0));
    REFUSED(process_vm_writev(getpid(), list, 3, &local, 1, 0));
}
static void check_beginning(char *end) {
    char here[64];
    struct iovec lists[][2] = {{{memory, 10}, {end, 9}}, {{end - 10, 20}, {memory, 9}}, {{end - 10, 10}, {end, 1}}};
    struct iovec local = {here, 64};
    for (int i = 0; i < 3; i++) {
        CHECK(COLD(vmsplice(ends[1], lists[i], 2, SPLICE_F_NONBLOCK)) == 10, "vmsplice %d", i);
        CHECK(read(ends[0], here, 64) == 10, "vmsplice %d put something else", i);
        CHECK(COLD(process_vm_readv(getpid(), lists[i], 2, &local, 1, 0)) == 10, "process_vm_readv %d", i);
        CHECK(COLD(process_vm_readv(getpid(), &local, 1, lists[i], 2, 0)) == 10, "process_vm_readv from %d", i);
        CHECK(COLD(process_vm_writev(getpid(), lists[i], 2, &local, 1, 0)) == 10, "process_vm_writev %d", i);
        CHECK(COLD(process_vm_writev(getpid(), &local, 1, lists[i], 2, 0)) == 10, "process_vm_writev to %d", i);
        struct iovec swapped[2] = {lists[0][1], lists[0][0]};
        CHECK(COLD(vmsplice(ends[1], swapped, 2, SPLICE_F_NONBLOCK)) == -1 && errno == EFAULT, "vmsplice of nothing");
        CHECK(write(ends[1], here, 16) == 16, "a pipe that is filled");
        CHECK(COLD(vmsplice(ends[0], lists[i], 2, SPLICE_F_NONBLOCK)) == -1 && errno == EFAULT, "vmsplice to %d", i);
        CHECK(read(ends[0], here, 64) == 16, "vmsplice to %d has taken some", i);
    }
    // Of the last one, only the bytes behind its length may not be accessed.
    struct iovec byte = {here, 1};
    struct mmsghdr *list = (struct mmsghdr *)(end + 4 - 2 * sizeof *list);
    for (int i = 0; i < 2; i++) list[i].msg_hdr = (struct msghdr){.msg_iov = &byte, .msg_iovlen = 1};
    CHECK(COLD(sendmmsg(messages[0], list, 2, MSG_DONTWAIT)) == 2, "sendmmsg of a list that is cut behind its last");
    CHECK(COLD(recvmmsg(messages[1], list, 2, MSG_DONTWAIT, NULL)) == 2, "recvmmsg to such a list");
}
int main(void) {
    start_engine();
    memory = anonymous(8 * MIB);
    memset(memory, 1, 8 * MIB);
    file = memfd_create("file", 0), zero = open("/dev/zero", O_RDWR);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, stream) || socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, messages)) return 2;
    if (pipe2(ends, O_NONBLOCK) || write(stream[0], "16 bytes of data", 16) != 16 || write(file, memory, 100) != 100) return 2;
    if (lseek(file, 0, SEEK_SET)) return 2;
    char *refused[] = {(char *)0xffff888000000000, (char *)(1ul << 63), (char *)-1ul};
    for (int i = 0; i < 6; i++) check_empty(refused[i / 2], i % 2);
    munmap(memory + MIB, PAGE);
    check_beginning(memory + MIB);
    DONE;
}
