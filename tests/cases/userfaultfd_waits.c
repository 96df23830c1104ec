// EXPECT: exit 0, last line "ok"
// NEEDS: root
// ARGS: populate
// ARGS: discard
// ARGS: unmap
// ARGS: move
// LIMIT_S: 40
// Calls that return once a thread of the program has served its own userfaultfd, while that thread maps and unmaps
// memory. There is room for all that the program has.
#include "check.h"
#include <linux/userfaultfd.h>
#include <poll.h>
#define LEN (256 * PAGE)
static int uffd;
static void *serve(void *unused) {
    struct uffd_msg message;
    (void)unused;
    for (;;) {
        struct pollfd ready = {uffd, POLLIN, 0};
        poll(&ready, 1, -1);
        char *page = anonymous(64 * PAGE);
        memset(page, 9, PAGE);
        if (read(uffd, &message, sizeof message) == sizeof message && message.event == UFFD_EVENT_PAGEFAULT) {
            struct uffdio_copy copy = {message.arg.pagefault.address & -PAGE, (uintptr_t)page, PAGE, 0, 0};
            ioctl(uffd, UFFDIO_COPY, &copy);
        }
        munmap(page, 64 * PAGE);
    }
    return NULL;
}
static char *served(void) {
    char *memory = anonymous(2 * MIB);
    struct uffdio_register wanted = {{(uintptr_t)memory, LEN}, UFFDIO_REGISTER_MODE_MISSING, 0};
    CHECK(!ioctl(uffd, UFFDIO_REGISTER, &wanted), "UFFDIO_REGISTER");
    return memory;
}
int main(int count, char **words) {
    char way = count > 1 ? words[1][0] : 0;
    struct uffdio_api api = {UFFD_API, 0, 0};
    pthread_t thread;
    if (way == 'd') api.features = UFFD_FEATURE_EVENT_REMOVE;
    if (way == 'u') api.features = UFFD_FEATURE_EVENT_UNMAP;
    if (way == 'm') api.features = UFFD_FEATURE_EVENT_REMAP;
    uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api)) return 2;
    char *memory = served();
    pthread_create(&thread, NULL, serve, NULL);
    for (int round = 0; round < 50; round++) {
        if (way == 'u') {
            char *other = served();
            CHECK(other[PAGE] == 9, "content");
            CHECK(!munmap(other, 2 * MIB), "munmap");
        } else if (way == 'm') {
            char *from = served(), *to = anonymous(2 * MIB);
            CHECK(from[PAGE] == 9, "content");
            CHECK(mremap(from, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to, "mremap");
            CHECK(to[PAGE] == 9 && to[2 * PAGE] == 9, "content");
            munmap(from, 2 * MIB);
            munmap(to, 2 * MIB);
        } else {
            if (way != 'd') CHECK(!madvise(memory, LEN, MADV_POPULATE_READ), "MADV_POPULATE_READ");
            CHECK(memory[7 * PAGE] == 9, "content");
            CHECK(!madvise(memory, LEN, MADV_DONTNEED), "MADV_DONTNEED");
        }
    }
    DONE;
}
