/* Tests whether memory can be read or written, by trying it and catching SIGSEGV. */
#include "check.h"
#include <setjmp.h>

static sigjmp_buf access_back;
static volatile sig_atomic_t is_trying;

static void on_segv(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    if (!is_trying) {
        dprintf(2, "SIGSEGV at %p\n", info->si_addr);
        _exit(1);
    }
    siglongjmp(access_back, 1);
}

static inline void catch_segv(void) {
    struct sigaction action = {.sa_sigaction = on_segv, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
}

/* Whether an access raises no SIGSEGV. */
#define CAN(access)                                                                                                    \
    ({                                                                                                                 \
        is_trying = sigsetjmp(access_back, 1) == 0;                                                                    \
        if (is_trying)                                                                                                 \
            access;                                                                                                    \
        int could = is_trying;                                                                                         \
        is_trying = 0;                                                                                                 \
        could;                                                                                                         \
    })

static inline int can_read(const void *at) { return CAN((void)*(const volatile char *)at); }

static inline int can_write(void *at) { return CAN(*(volatile char *)at = *(volatile char *)at); }

/* Whether a call failed with this error. */
#define FAILS(call, error) (errno = 0, (call) == -1 && errno == (error))

static inline size_t next_random(size_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}
