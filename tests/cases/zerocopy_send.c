// EXPECT: exit 0, last line "ok"
// What is sent with MSG_ZEROCOPY arrives as it was when it was sent, or the kernel's way without zero copies is taken.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#define M (1 << 20)
#define PIECE 65536
#define COUNT 64
#define CHECK(x) do { if (!(x)) { printf("FAIL line %d: %s (errno %d)\n", __LINE__, #x, errno); exit(1); } } while (0)
int main(void) {
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0), server;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    CHECK(bind(listener, (void *)&at, len) == 0 && listen(listener, 1) == 0 && getsockname(listener, (void *)&at, &len) == 0);
    int room = 8 * M, one = 1;
    setsockopt(client, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    CHECK(connect(client, (void *)&at, len) == 0 && (server = accept(listener, 0, 0)) >= 0);
    int zero_copy = setsockopt(client, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) == 0;
    CHECK(zero_copy || errno == ENOPROTOOPT);
    unsigned char *a = mmap(0, (size_t)COUNT * PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(a != MAP_FAILED);
    int sent = 0, to_notify = 0;
    for (; sent < COUNT; sent++) {
        memset(a + sent * PIECE, sent + 1, PIECE);
        ssize_t n = send(client, a + sent * PIECE, PIECE, MSG_ZEROCOPY | MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0 && errno == ENOBUFS)
            n = send(client, a + sent * PIECE, PIECE, 0);
        else
            to_notify += zero_copy;
        CHECK(n == PIECE);
    }
    char *b = mmap(0, 300ul * M, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(b != MAP_FAILED);
    memset(b, 99, 300ul * M);
    shutdown(client, SHUT_WR);
    static unsigned char got[PIECE];
    long total = 0, n;
    while ((n = recv(server, got, PIECE, 0)) > 0) {
        for (long i = 0; i < n; i++)
            CHECK(got[i] == (total + i) / PIECE + 1);
        total += n;
    }
    CHECK(n == 0 && total == (long)sent * PIECE);
    while (to_notify > 0) {
        char control[128];
        struct msghdr m = {.msg_control = control, .msg_controllen = sizeof control};
        struct pollfd p = {.fd = client};
        CHECK(poll(&p, 1, 10000) == 1);
        if (recvmsg(client, &m, MSG_ERRQUEUE) < 0) {
            CHECK(errno == EAGAIN);
            continue;
        }
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        CHECK(c);
        unsigned *e = (void *)CMSG_DATA(c); /* sock_extended_err: the range is in its last two words */
        to_notify -= e[3] - e[2] + 1;
    }
    fprintf(stderr, "note: zero copy %s, %d pieces\n", zero_copy ? "granted" : "refused", sent);
    puts("ok");
    return 0;
}
