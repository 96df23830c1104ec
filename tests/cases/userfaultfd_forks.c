// EXPECT: exit 0, last line "ok"
// NEEDS: root
// ARGS: large
// LIMIT_S: 40
// A program is told of its forks by a userfaultfd of its own: each fork returns once the thread that reads the events
// has read that. The first forks come before this thread has begun.
#include "check.h"
#include <linux/userfaultfd.h>
#include <poll.h>
static int uffd;
static volatile int nr_events;
static void *serve(void *unused) {
    struct uffd_msg message;
    (void)unused;
    for (;;) {
        struct pollfd ready = {uffd, POLLIN, 0};
        poll(&ready, 1, -1);
        if (read(uffd, &message, sizeof message) != sizeof message) continue;
        if (message.event == UFFD_EVENT_FORK) close(message.arg.fork.ufd);
        nr_events++;
    }
    return NULL;
}
int main(int count, char **words) {
    char *beside = NULL;
    (void)words;
    if (count > 1) fill(beside = anonymous(64 * MIB), 64 * MIB);
    struct uffdio_api api = {UFFD_API, UFFD_FEATURE_EVENT_FORK, 0};
    uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api)) return 2;
    char *memory = anonymous(MIB);
    memset(memory, 1, MIB);
    struct uffdio_register wanted = {{(uintptr_t)memory, MIB}, UFFDIO_REGISTER_MODE_MISSING, 0};
    CHECK(!ioctl(uffd, UFFDIO_REGISTER, &wanted), "UFFDIO_REGISTER");
    pthread_t thread;
    pthread_create(&thread, NULL, serve, NULL);
    for (int round = 0; round < 20; round++) {
        pid_t child = fork();
        if (child == 0) _exit(memory[5 * PAGE] != 1 || (beside && wrong_pages(beside, MIB)));
        int status = -1;
        waitpid(child, &status, 0);
        CHECK(child > 0 && status == 0, "child %d: %x", round, status);
    }
    CHECK(nr_events == 20, "%d events", nr_events);
    DONE;
}
