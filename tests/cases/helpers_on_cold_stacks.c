// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// A coroutine asks for notifications by threads, and for asynchronous reads: the C library makes a thread, for which it
// blocks all signals, while the coroutine's stack leaves RAM. It makes one in each process, so there are many. And one
// waits for a read: the C library's thread counts on that stack.
#include "cold.h"
#include <aio.h>
#include <mqueue.h>
#include <time.h>
enum { STACK_BYTES = 2 * MIB, CHILDREN = 20 };
static char *stack;
static void nothing(union sigval value) { (void)value; }
static void *send_stack_out(void *none) {
    for (;;) madvise(stack, STACK_BYTES, MADV_PAGEOUT);
    return none;
}
static int ends[2], is_asked;
static char byte;
static struct aiocb request;
static struct aiocb *list[] = {&request};
static void *read_later(void *none) {
    request = (struct aiocb){.aio_fildes = ends[0], .aio_buf = &byte, .aio_nbytes = 1};
    if (aio_read(&request)) _exit(3);
    __atomic_store_n(&is_asked, 1, __ATOMIC_SEQ_CST);
    usleep(3000);
    if (write(ends[1], "x", 1) != 1) _exit(4);
    return none;
}
static void ask(int what) {
    struct sigevent event = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = nothing};
    pthread_t thread;
    pthread_create(&thread, NULL, send_stack_out, NULL);
    usleep(500);
    if (what == 0) {
        timer_t timer;
        _exit(timer_create(CLOCK_MONOTONIC, &event, &timer) != 0);
    }
    if (what == 1) {
        char name[64];
        snprintf(name, sizeof name, "/helpers_on_cold_stacks_%d", getpid());
        mqd_t queue = mq_open(name, O_CREAT | O_RDWR, 0600, NULL);
        mq_unlink(name);
        _exit(queue != (mqd_t)-1 && mq_notify(queue, &event) != 0);
    }
    if (what == 4) {
        if (pipe(ends)) _exit(2);
        pthread_create(&thread, NULL, read_later, NULL);
        while (!__atomic_load_n(&is_asked, __ATOMIC_SEQ_CST)) usleep(100);
        _exit(aio_suspend((const struct aiocb **)list, 1, NULL) != 0 || aio_return(&request) != 1);
    }
    request = (struct aiocb){.aio_fildes = open("/dev/zero", O_RDONLY), .aio_buf = &byte, .aio_nbytes = 1};
    request.aio_lio_opcode = LIO_READ;
    _exit((what == 2 ? aio_read(&request) : lio_listio(LIO_NOWAIT, list, 1, NULL)) != 0);
}
static void ask_often(void) {
    for (int i = 0; i < 5 * CHILDREN; i++) {
        pid_t child = fork();
        if (child == 0) ask(i % 5);
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child && status == 0, "%d ended with %x", i % 5, status);
    }
}
int main(void) {
    start_engine();
    stack = (char *)(((uintptr_t)anonymous(2 * STACK_BYTES) + STACK_BYTES - 1) & -STACK_BYTES);
    on_coroutine(stack, STACK_BYTES, ask_often);
    DONE;
}
