// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// Calls that write to a structure of which only the beginning may be written: sendmmsg sends no message after the first
// whose length it cannot tell, and F_GETLK fails with EFAULT, not because it has changed what it was asked.
#include "cold.h"
#include <sys/socket.h>
#define COLD(call) (send_out(memory, 8 * MIB), errno = 0, (call))
static int nr_arrived(int socket) {
    char message[16];
    int nr = 0;
    while (recv(socket, message, sizeof message, MSG_DONTWAIT) >= 0) nr++;
    return nr;
}
int main(void) {
    start_engine();
    char *memory = anonymous(8 * MIB), *border = memory + 4 * MIB;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair)) return 2;
    struct iovec buffer = {"payload", 7};
    for (int nr = 0; nr < 3; nr++) {
        mprotect(border, PAGE, PROT_READ | PROT_WRITE);
        memset(memory, 0, 8 * MIB);
        struct mmsghdr *list = (struct mmsghdr *)border - nr;
        for (int i = 0; i < 4; i++) list[i].msg_hdr.msg_iov = &buffer, list[i].msg_hdr.msg_iovlen = 1;
        mprotect(border, PAGE, PROT_READ);
        int sent = COLD(sendmmsg(pair[0], list, 4, 0)), why = errno, arrived = nr_arrived(pair[1]);
        CHECK(nr ? sent == nr : sent == -1 && why == EFAULT, "sent %d of %d", sent, nr);
        CHECK(arrived == nr + 1, "%d arrived of %d", arrived, nr + 1);
    }
    int file = memfd_create("locks", 0), requests[] = {F_GETLK, F_OFD_GETLK};
    for (int i = 0; i < 2; i++) {
        mprotect(border, PAGE, PROT_READ | PROT_WRITE);
        struct flock *lock = (struct flock *)(border - 8);
        *lock = (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 10};
        mprotect(border, PAGE, PROT_READ);
        CHECK(COLD(fcntl(file, requests[i], lock)) == -1 && errno == EFAULT, "question %d", i);
        mprotect(border, PAGE, PROT_READ | PROT_WRITE);
        lock->l_type = F_WRLCK;
        CHECK(COLD(fcntl(file, requests[i], lock)) == 0 && lock->l_type == F_UNLCK, "answer %d", i);
        lock->l_type = F_WRLCK;
        mprotect(border, PAGE, PROT_READ);
        CHECK(COLD(syscall(SYS_fcntl, file, requests[i], lock)) == -1 && errno == EFAULT, "by number %d", i);
    }
    DONE;
}
