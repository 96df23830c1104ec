// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// ARGS: touch
// ARGS: protect
// ARGS: map
// ARGS: handler
/* A thread is cancelled while it touches memory or makes memory calls, asynchronously; or in read, while a handler of
 * its touches memory. It ends once, as cancelled, and its cleanup handler finds its memory. */
#include "check.h"
enum { NR = 100, BYTES = 64 << 20 };
static char *memory;
static const char *how;
static int pipe_ends[2];
static volatile int is_up, nr_cleaned;

static char *next_page(unsigned long *at) {
    *at = *at * 6364136223846793005ul + 1442695040888963407ul;
    return memory + (*at >> 33) % (BYTES / PAGE) * PAGE;
}

static void handle(int signal) {
    static unsigned long at;
    (void)signal;
    for (int i = 0; i < 100; i++) (*(volatile char *)(next_page(&at) + 9))++;
}

static void clean(void *frame) {
    CHECK(((volatile char *)frame)[5] == 7, "the frame");
    for (size_t at = 0; at < BYTES; at += 64 * PAGE) (*(volatile char *)(memory + at + 10))++;
    nr_cleaned++;
}

static void *run(void *seed) {
    volatile char frame[64];
    unsigned long at = (unsigned long)seed * 1234567;
    char byte;
    memset((char *)frame, 7, sizeof frame);
    pthread_cleanup_push(clean, (void *)frame);
    if (how[0] != 'h') pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    is_up = 1;
    for (;;) {
        char *page = next_page(&at);
        if (how[0] == 't') (*(volatile char *)(page + 8))++;
        if (how[0] == 'p') mprotect(page, PAGE, PROT_READ | PROT_WRITE);
        if (how[0] == 'm') {
            void *other = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            munmap(other, 1 << 16);
        }
        if (how[0] == 'h' && read(pipe_ends[0], &byte, 1) == 1) break;
    }
    pthread_cleanup_pop(0);
    return NULL;
}

int main(int argc, char **argv) {
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    how = argc > 1 ? argv[1] : "touch";
    memory = anonymous(BYTES);
    fill(memory, BYTES);
    CHECK(pipe(pipe_ends) == 0, "pipe");
    sigaction(SIGUSR1, &action, NULL);
    for (long nr = 0; nr < NR && !nr_wrong; nr++) {
        pthread_t thread;
        void *result = NULL;
        nr_cleaned = is_up = 0;
        pthread_create(&thread, NULL, run, (void *)nr);
        while (!is_up) usleep(10);
        if (how[0] == 'h') {
            usleep(200);
            pthread_kill(thread, SIGUSR1);
        }
        usleep(nr * 37 % 1000);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        CHECK(result == PTHREAD_CANCELED && nr_cleaned == 1, "%p, cleaned %d times", result, nr_cleaned);
    }
    CHECK(wrong_pages(memory, BYTES) == 0, "pages");
    DONE;
}
