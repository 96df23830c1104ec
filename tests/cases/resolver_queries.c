// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 60
// Answers of a name server, into memory that has left RAM, and queries from there. The server is a thread.
#include "cold.h"
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <resolv.h>
#include <sys/socket.h>
#define ROOM 65536
static int server;
// Names that begin with `n` do not exist; all others have one address.
static void *serve(void *unused) {
    static const unsigned char found[] = {0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 1, 2, 3, 4};
    unsigned char packet[2000];
    (void)unused;
    for (;;) {
        struct sockaddr_in from;
        socklen_t len = sizeof from;
        ssize_t got = recvfrom(server, packet, sizeof packet, 0, (struct sockaddr *)&from, &len);
        if (got < 12) return NULL;
        int exists = packet[13] != 'n';
        packet[2] |= 0x80, packet[3] = exists ? 0x80 : 0x83, packet[7] = exists;
        if (exists) memcpy(packet + got, found, sizeof found);
        sendto(server, packet, got + (exists ? sizeof found : 0), 0, (struct sockaddr *)&from, len);
    }
}
static void set(struct __res_state *state, struct sockaddr_in *at) {
    state->nscount = 1, state->nsaddr_list[0] = *at, state->retrans = 2, state->retry = 1;
    state->options &= ~(RES_USE_EDNS0 | RES_DNSRCH | RES_DEFNAMES);
}
int main(void) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t at_len = sizeof at;
    pthread_t thread;
    static struct __res_state state;
    start_engine();
    server = socket(AF_INET, SOCK_DGRAM, 0);
    if (bind(server, (struct sockaddr *)&at, sizeof at) || getsockname(server, (struct sockaddr *)&at, &at_len)) return 2;
    pthread_create(&thread, NULL, serve, NULL);
    res_ninit(&state), res_init();
    set(&state, &at), set(&_res, &at);
    char *memory = anonymous(16 * MIB);
    memory = (char *)(((uintptr_t)memory + 2 * MIB - 1) & -(2 * MIB));
    unsigned char *answer = (unsigned char *)memory + 2 * MIB - 14, *query = (unsigned char *)memory + 6 * MIB - 14;
    for (int way = 0; way < 8; way++) {
        for (int exists = 0; exists < 2; exists++) {
            const char *name = exists ? "x.test" : "n.test", *label = exists ? "x" : "n";
            memset(memory, 7, 12 * MIB);
            int query_len = res_nmkquery(&state, QUERY, name, C_IN, T_A, NULL, 0, NULL, query, 512);
            send_out(memory, 12 * MIB);
            use_others();
            int len = way == 0   ? res_nquery(&state, name, C_IN, T_A, answer, ROOM)
                      : way == 1 ? res_query(name, C_IN, T_A, answer, ROOM)
                      : way == 2 ? res_nsearch(&state, name, C_IN, T_A, answer, ROOM)
                      : way == 3 ? res_search(name, C_IN, T_A, answer, ROOM)
                      : way == 4 ? res_nquerydomain(&state, label, "test", C_IN, T_A, answer, ROOM)
                      : way == 5 ? res_querydomain(label, "test", C_IN, T_A, answer, ROOM)
                      : way == 6 ? res_nsend(&state, query, query_len, answer, ROOM)
                                 : res_send(query, query_len, answer, ROOM);
            if (way < 6 && !exists) {
                CHECK(len == -1 && h_errno == HOST_NOT_FOUND, "way %d, none: %d, %d", way, len, h_errno);
            } else {
                CHECK(len == 12 + 8 + 4 + (exists ? 16 : 0), "way %d, %d: %d, %d", way, exists, len, h_errno);
            }
            CHECK(answer[3] == (exists ? 0x80 : 0x83), "way %d, %d: told %x", way, exists, answer[3]);
            CHECK(answer[100] == 7 && answer[-1] == 7, "way %d, %d: beside it", way, exists);
        }
    }
    DONE;
}
