// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// aligned_alloc takes an alignment that is no power of two, as memalign does, until glibc 2.38.
#include "check.h"
#include <gnu/libc-version.h>
int main(void) {
    int minor = atoi(strchr(gnu_get_libc_version(), '.') + 1);
    char *block = aligned_alloc(24, 100);
    CHECK(minor >= 38 ? !block && errno == EINVAL : block && (uintptr_t)block % 32 == 0, "aligned_alloc: %p", block);
    DONE;
}
