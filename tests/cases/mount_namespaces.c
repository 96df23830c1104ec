// EXPECT: exit 0, last line "ok"
// NEEDS: root
// BUDGETS: 24M
// LIMIT_S: 60
// A program with one thread enters another mount namespace, which the kernel permits only to those who share their root
// and folder with nobody. Its children do, too, and its memory stays what it was.
#include "check.h"
#include <sched.h>
#include <sys/mount.h>

enum { BYTES = 64 << 20 };

static void enter(char *memory, int other) {
    int own = open("/proc/self/ns/mnt", O_RDONLY);
    CHECK(own >= 0 && setns(own, CLONE_NEWNS) == 0, "its own");
    CHECK(setns(other, CLONE_NEWNS) == 0, "another");
    CHECK(wrong_pages(memory, BYTES) == 0, "pages");
}

int main(void) {
    char *memory = anonymous(BYTES);
    fill(memory, BYTES);
    int ends[2];
    char path[64], byte;
    if (pipe(ends)) return 2;
    pid_t beside = fork();
    if (beside == 0) _exit(unshare(CLONE_NEWNS) || write(ends[1], "", 1) != 1 || pause());
    if (read(ends[0], &byte, 1) != 1) return 2;
    snprintf(path, sizeof path, "/proc/%d/ns/mnt", beside);
    int other = open(path, O_RDONLY);
    pid_t child = fork();
    if (child == 0) {
        enter(memory, other);
        _exit(nr_wrong);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "a child: %x", status);
    enter(memory, other);
    child = fork();
    if (child == 0) _exit(wrong_pages(memory, BYTES) != 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0, "a child there: %x", status);
    kill(beside, SIGKILL);
    DONE;
}
