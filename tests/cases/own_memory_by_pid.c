// EXPECT: exit 0, last line "ok"
// BUDGETS: 32M 96M
/* process_vm_readv and process_vm_writev of the process's own memory, more than its budget at once, and what success
   leaves in errno. MADV_COLLAPSE within a block is refused as by the kernel. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MIB = 1 << 20, AREA = 120 * MIB, PAGE = 4096, COLLAPSE = 25 };

static int is_copied(char *to, char *from, size_t len, int writes) {
    struct iovec local = {writes ? from : to, len}, own = {writes ? to : from, len};
    for (size_t at = 0; at < len; at += PAGE) memcpy(from + at, &at, sizeof at), to[at] = 0;
    errno = 77;
    ssize_t done = writes ? process_vm_writev(getpid(), &local, 1, &own, 1, 0)
                          : process_vm_readv(getpid(), &local, 1, &own, 1, 0);
    if (done != (ssize_t)len || errno != 77) return printf("%zd of %zu bytes, errno %d\n", done, len, errno), 0;
    for (size_t at = 0; at < len; at += PAGE)
        if (memcmp(to + at, &at, sizeof at) != 0) return printf("wrong at %zu\n", at), 0;
    return 1;
}

int main(void) {
    char *area = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(area, 1, AREA);
    size_t lens[] = {1 * MIB, 33 * MIB, 57 * MIB};
    for (int one = 0; one < 3; one++)
        for (int writes = 0; writes < 2; writes++)
            if (!is_copied(area, area + AREA / 2, lens[one], writes)) return 1;
    char *block = (char *)(((uintptr_t)area + 2 * MIB - 1) & ~(uintptr_t)(2 * MIB - 1));
    if (madvise(block + PAGE, MIB, COLLAPSE) != -1 || errno != EINVAL) return puts("collapsed within a block"), 1;
    puts("ok");
    return 0;
}
