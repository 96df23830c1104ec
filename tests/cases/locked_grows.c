// EXPECT: exit 0, last line "ok"
// NEEDS: root
// Locked memory grows by mremap, where it lies and by a move. A child has what has grown.
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define LEN (4096 * PAGE)
#define MORE (64 * PAGE)

static int child_finds(const char *memory, size_t len) {
    pid_t child = fork();
    if (child == 0) {
        for (size_t at = 0; at < len; at += PAGE)
            if (memory[at] != (char)(at / PAGE + 1)) _exit(1);
        _exit(0);
    }
    int status = -1;
    return waitpid(child, &status, 0) == child && status == 0;
}

int main(void) {
    for (int moves = 0; moves < 2; moves++) {
        char *memory = mmap(NULL, LEN + MORE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        char *target = mmap(NULL, LEN + MORE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED || target == MAP_FAILED || munmap(memory + LEN, MORE) || mlock(memory, LEN)) return 2;
        int flags = moves ? MREMAP_MAYMOVE | MREMAP_FIXED : 0;
        memory = mremap(memory, LEN, LEN + MORE, flags, target);
        if (memory == MAP_FAILED) { perror("FAIL mremap"); return 1; }
        for (size_t at = 0; at < LEN + MORE; at += PAGE) memory[at] = (char)(at / PAGE + 1);
        for (int locked = 1; locked >= 0; locked--) {
            if (!child_finds(memory, LEN + MORE)) { printf("FAIL child, moves %d, locked %d\n", moves, locked); return 1; }
            if (munlock(memory, LEN + MORE)) { perror("FAIL munlock"); return 1; }
        }
        munmap(memory, LEN + MORE);
    }
    printf("ok\n");
    return 0;
}
