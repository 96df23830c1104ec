// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 60
// Threads with the smallest stack page memory in, call, allocate and fork.
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES (64ul << 20)

static unsigned char *memory;

static void *work(void *argument) {
    for (size_t at = 0; at < BYTES; at += 4096) memory[at]++;
    char *block = malloc(100000);
    memset(block, 1, 100000);
    free(block);
    void *mapped = mmap(NULL, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(mapped, 1, 4 << 20);
    munmap(mapped, 4 << 20);
    pid_t child = fork();
    if (child == 0) {
        for (size_t at = 0; at < BYTES; at += 4096)
            if (memory[at] != memory[0]) _exit(1);
        _exit(0);
    }
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0 ? argument : NULL;
}

int main(void) {
    memory = malloc(BYTES);
    memset(memory, 1, BYTES);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN) != 0) return 2;
    for (int round = 0; round < 4; round++) {
        pthread_t thread;
        void *result = NULL;
        if (pthread_create(&thread, &attributes, work, memory) != 0) return 3;
        pthread_join(thread, &result);
        if (result != memory) return 4;
    }
    puts("ok");
    return 0;
}
