// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// A child of vfork ends past libc. Then a thread does, and the others go on.
#include "check.h"
enum { BYTES = 48 << 20 };
static void *work(void *none) {
    syscall(SYS_exit, 0);
    return none;
}
int main(void) {
    char *bytes = anonymous(BYTES);
    fill(bytes, BYTES);
    for (volatile int round = 0; round < 3; round++) {
        if (vfork() == 0) syscall(SYS_exit, 0);
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, work, NULL) == 0 && pthread_join(thread, NULL) == 0, "a thread");
        CHECK(wrong_pages(bytes, BYTES) == 0, "other content");
    }
    DONE;
}
