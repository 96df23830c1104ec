// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// A signal ends a write to a full pipe with what it has written, wherever that is in the buffer, although its handler
// was installed with SA_RESTART.
#include "cold.h"
#include <sys/uio.h>
static int ends[2];
static size_t taken;
static void on_alarm(int number) { (void)number; }
static void *take(void *unused) {
    static char bytes[2 * MIB];
    (void)unused;
    for (size_t done = 0; done < taken;) done += read(ends[0], bytes, taken - done);
    return NULL;
}
enum { ONE, LIST, LIST_BY_NUMBER };
static void write_until_full(char *memory, size_t len, int how) {
    pthread_t thread;
    if (pipe(ends)) exit(2);
    taken = len - fcntl(ends[1], F_GETPIPE_SZ);
    pthread_create(&thread, NULL, take, NULL);
    alarm(2);
    struct iovec list[2] = {{memory, MIB}, {memory + MIB, 3 * MIB}};
    ssize_t written = how == ONE    ? write(ends[1], memory, 4 * MIB)
                      : how == LIST ? writev(ends[1], list, 2)
                                    : syscall(SYS_writev, ends[1], list, 2);
    CHECK(written == (ssize_t)len, "%zu bytes of %zu, call %d", (size_t)written, len, how);
    alarm(0);
    pthread_join(thread, NULL);
    close(ends[0]);
    close(ends[1]);
}
int main(void) {
    start_engine();
    char *memory = anonymous(4 * MIB);
    memset(memory, 1, 4 * MIB);
    send_out(memory, 4 * MIB);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    write_until_full(memory, 256 << 10, ONE);
    write_until_full(memory, MIB, LIST);
    write_until_full(memory, MIB, LIST_BY_NUMBER);
    DONE;
}
