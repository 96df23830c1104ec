// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// Calls that write little, into memory that has left RAM, with a length of far more; select with one set for two
// purposes; and writes of more than 2 GiB, which are cut.
#include "cold.h"
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#define LEN (100 * MIB)
#define COLD(call) (send_out(memory, PAGE), errno = 0, (call))
int main(void) {
    start_engine();
    char *memory = anonymous(LEN);
    memset(memory, 1, LEN);
    send_out(memory, LEN);
    int folder = open("/", O_RDONLY | O_DIRECTORY), pair[2];
    CHECK(COLD(syscall(SYS_getdents64, folder, memory, LEN)) > 0, "getdents64");
    CHECK(COLD(readlink("/proc/self/exe", memory, LEN)) > 0, "readlink");
    CHECK(COLD(getcwd(memory, LEN)) == memory, "getcwd");
    CHECK(COLD(getcwd(memory, SIZE_MAX)) == memory, "getcwd, at most");
    CHECK(COLD(listxattr("/", memory, LEN)) >= 0, "listxattr");
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return 2;
    socklen_t len = LEN;
    CHECK(COLD(getsockname(pair[0], (void *)memory, &len)) == 0, "getsockname");
    len = LEN;
    CHECK(COLD(getsockopt(pair[0], SOL_SOCKET, SO_TYPE, memory, &len)) == 0 && len == 4, "getsockopt");
    strcpy(memory, "proc");
    CHECK(COLD(syscall(SYS_sysfs, 1, memory)) >= 0, "sysfs");
    // Writable, and not readable.
    fd_set *set = (fd_set *)memory;
    FD_ZERO(set);
    FD_SET(pair[0], set);
    struct timeval limit = {1, 0};
    CHECK(COLD(select(pair[0] + 1, set, set, NULL, &limit)) == 1 && FD_ISSET(pair[0], set), "select");
    int null = open("/dev/null", O_WRONLY);
    struct iovec list[1024];
    for (int i = 0; i < 1024; i++) list[i] = (struct iovec){memory, 4 * MIB};
    ssize_t written = writev(null, list, 1024);
    CHECK(written == 0x7ffff000, "writev: %zd", written);
    DONE;
}
