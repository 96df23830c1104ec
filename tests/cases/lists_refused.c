// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// Lists of buffers with lengths that the kernel refuses, in memory that has left RAM.
#include "cold.h"
#include <sys/socket.h>
#include <sys/uio.h>
#define COLD(call) (send_out(memory, PAGE), errno = 0, (call))
int main(void) {
    start_engine();
    char *memory = anonymous(8 * MIB);
    memset(memory, 1, 8 * MIB);
    char here[16];
    int stream[2], messages[2], ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, stream) || socketpair(AF_UNIX, SOCK_DGRAM, 0, messages)) return 2;
    if (pipe(ends) || write(stream[0], here, 16) != 16 || write(messages[0], here, 16) != 16) return 2;
    struct iovec *list = (struct iovec *)memory, local = {here, 16};
    struct msghdr header = {.msg_iov = list, .msg_iovlen = 2};
    for (int i = 0; i < 4; i++) {
        size_t len = i % 2 ? SIZE_MAX : 1ul << 63;
        list[0] = (struct iovec){memory + 4 * MIB, i < 2 ? len : 100};
        list[1] = (struct iovec){memory + 4 * MIB, i < 2 ? 100 : len};
        CHECK(COLD(sendmsg(stream[0], &header, MSG_DONTWAIT)) == -1 && errno == EINVAL, "sendmsg %d", i);
        CHECK(COLD(recvmsg(stream[1], &header, MSG_DONTWAIT)) == -1 && errno == EINVAL, "recvmsg %d", i);
        CHECK(COLD(sendmsg(messages[0], &header, MSG_DONTWAIT)) == -1 && errno == EINVAL, "a datagram %d", i);
        CHECK(COLD(recvmsg(messages[1], &header, MSG_DONTWAIT)) == -1 && errno == EINVAL, "from a datagram %d", i);
        CHECK(COLD(vmsplice(ends[1], list, 2, SPLICE_F_NONBLOCK)) == -1 && errno == EINVAL, "vmsplice %d", i);
        CHECK(COLD(writev(ends[1], list, 2)) == -1 && errno == EINVAL, "writev %d", i);
        CHECK(COLD(process_vm_readv(getpid(), list, 2, &local, 1, 0)) == -1 && errno == EINVAL, "to %d", i);
        CHECK(COLD(process_vm_writev(getpid(), list, 2, &local, 1, 0)) == -1 && errno == EINVAL, "from %d", i);
        CHECK(COLD(process_vm_readv(getpid(), &local, 1, list, 2, 0)) == -1 && errno == EINVAL, "from there %d", i);
        CHECK(COLD(process_vm_writev(getpid(), &local, 1, list, 2, 0)) == -1 && errno == EINVAL, "to there %d", i);
    }
    // Newer kernels cut a single buffer before they look at the addresses.
    char *local_pages = (char *)syscall(SYS_mmap, NULL, PAGE, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int null = open("/dev/null", O_WRONLY);
    list[0] = (struct iovec){memory + 4 * MIB, SIZE_MAX >> 1};
    struct iovec beside = {local_pages, SIZE_MAX >> 1};
    CHECK(COLD(writev(null, list, 1)) == writev(null, &beside, 1), "writev of one");
    // The sum overflows; each length alone does not.
    for (int i = 0; i < 2; i++) list[i] = (struct iovec){memory + 4 * MIB, 3ul << 61};
    CHECK(COLD(sendmsg(stream[0], &header, MSG_DONTWAIT)) == -1 && errno == EFAULT, "sendmsg of too much");
    CHECK(COLD(recvmsg(stream[1], &header, MSG_DONTWAIT)) == -1 && errno == EFAULT, "recvmsg of too much");
    CHECK(COLD(vmsplice(ends[1], list, 2, SPLICE_F_NONBLOCK)) == -1 && errno == EFAULT, "vmsplice of too much");
    CHECK(COLD(writev(ends[1], list, 2)) == -1 && errno == EFAULT, "writev of too much");
    DONE;
}
