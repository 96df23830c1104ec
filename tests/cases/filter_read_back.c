// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// SO_GET_FILTER tells a filter whose length is in instructions of 8 bytes, unlike that of other options.
#include <linux/filter.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#ifndef SO_GET_FILTER
#define SO_GET_FILTER SO_ATTACH_FILTER
#endif

enum { COUNT = 1000 };

int main(void) {
    char *memory = malloc(64 << 20);
    memset(memory, 1, 64 << 20);
    struct sock_filter *in = calloc(COUNT, sizeof *in), *out = malloc(COUNT * sizeof *out);
    for (int i = 0; i < COUNT; i++) in[i] = (struct sock_filter){ BPF_RET | BPF_K, 0, 0, 1000 + i };
    struct sock_fprog program = { COUNT, in };
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) != 0) return 2;
    for (int round = 0; round < 50; round++) {
        socklen_t len = COUNT;
        memset(out, 0xee, COUNT * sizeof *out);
        if (getsockopt(fd, SOL_SOCKET, SO_GET_FILTER, out, &len) != 0 || len != COUNT) return 3;
        if (memcmp(in, out, COUNT * sizeof *out) != 0) return 4;
        free(malloc(100));
    }
    puts("ok");
    return 0;
}
