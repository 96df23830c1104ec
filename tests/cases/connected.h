// Two ends of a TCP connection of the machine with itself, with large buffers where that is permitted.
#include <netinet/in.h>
#include <sys/socket.h>
static int ends[2];
static void connect_both(void) {
    int listens = socket(AF_INET, SOCK_STREAM, 0), size = 4 * MIB;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    CHECK(bind(listens, (void *)&at, len) == 0 && listen(listens, 1) == 0, "listen");
    getsockname(listens, (void *)&at, &len);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(ends[0], SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof size);
    CHECK(connect(ends[0], (void *)&at, len) == 0, "connect");
    ends[1] = accept(listens, 0, 0);
    setsockopt(ends[1], SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size);
    close(listens);
}
