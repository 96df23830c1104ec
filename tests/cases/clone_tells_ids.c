// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 60
// Children with a copy of the memory, for which clone writes ids and a descriptor to pages that have left RAM.
#include "cold.h"
#include <sched.h>
static char *memory;
static int end_at_once(void *unused) {
    (void)unused;
    return 0;
}
static void expect(pid_t child, int status) {
    int found = -1;
    waitpid(child, &found, 0);
    CHECK(WIFEXITED(found) && WEXITSTATUS(found) == status, "status %x", found);
}
// A place of its own that is not in RAM.
static int *cold_word(int index) {
    int *word = (int *)(memory + (2 * index + 1) * 2 * MIB - 16);
    *word = 0;
    send_out(word, 4);
    return word;
}
int main(void) {
    start_engine();
    memory = anonymous(64 * MIB);
    memory = (char *)(((uintptr_t)memory + 2 * MIB - 1) & -(2 * MIB));
    memset(memory, 1, 60 * MIB);
    char *stack = malloc(256 << 10);
    for (int round = 0; round < 2; round++) {
        int *id = cold_word(0), *fd = cold_word(1), *own = cold_word(2);
        if (round) use_others();
        pid_t child = clone(end_at_once, stack + (256 << 10), SIGCHLD | CLONE_PARENT_SETTID, NULL, id);
        CHECK(child > 0 && *id == child, "%d, told %d", child, *id);
        expect(child, 0);
        child = clone(end_at_once, stack + (256 << 10), SIGCHLD | CLONE_PIDFD, NULL, fd);
        CHECK(child > 0 && *fd > 2, "%d, descriptor %d", child, *fd);
        expect(child, 0);
        id = cold_word(0);
        if (round) use_others();
        child = syscall(SYS_clone, SIGCHLD | CLONE_PARENT_SETTID | CLONE_CHILD_SETTID, 0, id, own, 0);
        if (child == 0) _exit(*own == getpid() ? 5 : 6);
        CHECK(child > 0 && *id == child, "%d, told %d", child, *id);
        expect(child, 5);
        uint64_t *arguments = (uint64_t *)cold_word(3) - 10;
        id = cold_word(0), fd = cold_word(1), own = cold_word(2);
        memset(arguments, 0, 88);
        arguments[0] = CLONE_PIDFD | CLONE_PARENT_SETTID | CLONE_CHILD_SETTID;
        arguments[1] = (uintptr_t)fd, arguments[2] = (uintptr_t)own, arguments[3] = (uintptr_t)id;
        arguments[4] = SIGCHLD;
        send_out(arguments, 88);
        if (round) use_others();
        child = syscall(SYS_clone3, arguments, 88);
        if (child == 0) _exit(*own == getpid() ? 5 : 6);
        CHECK(child > 0 && *id == child && *fd > 2, "%d, told %d, descriptor %d", child, *id, *fd);
        expect(child, 5);
    }
    DONE;
}
