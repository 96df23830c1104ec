// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// SIGBUS, SIGSYS and SIGSEGV that are sent to a thread in a read: it goes on where the handler's action says so, or
// where the signal is ignored, and fails with EINTR elsewhere.
#include "cold.h"
static volatile int nr_handled;
static int ends[2], result;
static volatile pid_t reader;
static void handle(int signal) {
    (void)signal;
    nr_handled++;
}
static void *take(void *unused) {
    char byte;
    reader = gettid();
    result = read(ends[0], &byte, 1) == 1 ? 0 : errno;
    return unused;
}
// Waits until the reader sleeps in its read, as the kernel tells it.
static void wait_for_read(void) {
    char path[64], text[16] = "";
    while (strncmp(text, "0 ", 2) != 0) {
        usleep(1000);
        snprintf(path, sizeof path, "/proc/self/task/%d/syscall", reader);
        int file = open(path, O_RDONLY);
        if (file < 0) continue;
        if (read(file, text, sizeof text - 1) < 2) text[0] = 0;
        close(file);
    }
}
int main(void) {
    start_engine();
    static const int signals[] = {SIGBUS, SIGSYS, SIGSEGV, SIGUSR1};
    for (int i = 0; i < 4; i++)
        for (int way = 0; way < 3; way++) {
            struct sigaction action = {.sa_handler = way == 2 ? SIG_IGN : handle, .sa_flags = way == 1 ? SA_RESTART : 0};
            pthread_t thread;
            CHECK(sigaction(signals[i], &action, 0) == 0 && pipe(ends) == 0, "ready");
            nr_handled = reader = 0;
            pthread_create(&thread, 0, take, 0);
            wait_for_read();
            pthread_kill(thread, signals[i]);
            while (way < 2 && nr_handled == 0) usleep(1000);
            if (way == 0) pthread_join(thread, 0);
            CHECK(write(ends[1], "x", 1) == 1, "write");
            if (way != 0) pthread_join(thread, 0);
            CHECK(result == (way == 0 ? EINTR : 0), "signal %d, way %d: %d", signals[i], way, result);
            CHECK(nr_handled == (way < 2), "signal %d, way %d: %d handled", signals[i], way, nr_handled);
            close(ends[0]);
            close(ends[1]);
        }
    DONE;
}
