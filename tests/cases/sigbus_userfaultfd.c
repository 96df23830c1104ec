// EXPECT: exit 0, last line "ok"
// NEEDS: root
// BUDGETS: 24M
// A userfaultfd of the program's with UFFD_FEATURE_SIGBUS: a system call on a missing page fails with EFAULT, and no
// signal comes.
#include "check.h"
#include <linux/userfaultfd.h>
#define LEN (32 * MIB)
static void on_signal(int number) {
    (void)number;
    static const char text[] = "FAIL: SIGBUS\n";
    if (write(1, text, sizeof text - 1) > 0) _exit(3);
}
int main(void) {
    char *other = anonymous(2 * LEN), *memory = anonymous(LEN);
    fill(other, 2 * LEN);
    fill(memory, LEN / 2);
    int uffd = syscall(SYS_userfaultfd, O_CLOEXEC), ends[2];
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_SIGBUS};
    struct uffdio_register range = {{(uintptr_t)memory, LEN}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    CHECK(ioctl(uffd, UFFDIO_API, &api) == 0 && ioctl(uffd, UFFDIO_REGISTER, &range) == 0, "userfaultfd");
    signal(SIGBUS, on_signal);
    CHECK(pipe(ends) == 0, "pipe");
    char *missing = memory + LEN / 2;
    CHECK(write(ends[1], missing, 10) == -1 && errno == EFAULT, "write");
    CHECK(write(ends[1], "abc", 3) == 3 && read(ends[0], missing + MIB, 3) == -1 && errno == EFAULT, "read");
    CHECK(getcwd(missing + 2 * MIB, 100) == NULL && errno == EFAULT, "getcwd");
    CHECK(wrong_pages(memory, LEN / 2) == 0 && wrong_pages(other, 2 * LEN) == 0, "content");
    DONE;
}
