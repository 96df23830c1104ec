// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// A thread with a seccomp filter cannot set strict mode: EINVAL, and it goes on.
#include "cold.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
int main(void) {
    start_engine();
    struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {1, &allow};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new privileges");
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0, "filter");
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == -1 && errno == EINVAL, "strict by prctl");
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, 0) == -1 && errno == EINVAL, "strict by seccomp");
    CHECK(prctl(PR_GET_SECCOMP) == SECCOMP_MODE_FILTER, "mode");
    use_others();
    DONE;
}
