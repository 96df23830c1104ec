/* Tests whether memory can be read or written, by trying it and catching SIGSEGV. */
#include "check.h"
#include <setjmp.h>

static sigjmp_buf access_back;

static void on_segv(int signal) {
    (void)signal;
    siglongjmp(access_back, 1);
}

static inline void catch_segv(void) { CHECK(signal(SIGSEGV, on_segv) != SIG_ERR); }

static inline int can_read(const void *at) {
    if (sigsetjmp(access_back, 1))
        return 0;
    (void)*(const volatile char *)at;
    return 1;
}

static inline int can_write(void *at) {
    if (sigsetjmp(access_back, 1))
        return 0;
    *(volatile char *)at = *(volatile char *)at;
    return 1;
}

/* Whether a call failed with this error. */
#define FAILS(call, error) (errno = 0, (call) == -1 && errno == (error))

static inline size_t next_random(size_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}
