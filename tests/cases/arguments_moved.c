// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 60
// A program moves its arguments or its environment (PR_SET_MM) to memory that leaves RAM: /proc/PID/cmdline and environ
// still show them, to itself and others, in a forked child, too.
#include "cold.h"
#include <linux/prctl.h>
#include <sys/prctl.h>
#define NAME "another name"
#define LEN sizeof NAME
static char *memory;
static struct prctl_mm_map now;

// The fields of /proc/self/stat that PR_SET_MM_MAP wants to be right.
static void find_now(void) {
    static char text[4096];
    unsigned long fields[53] = {0};
    int fd = open("/proc/self/stat", O_RDONLY), at = 4;
    CHECK(read(fd, text, sizeof text - 1) > 0, "stat");
    close(fd);
    char *next = strrchr(text, ')') + 4;
    for (; at < 53; at++) fields[at] = strtoul(next, &next, 10);
    now = (struct prctl_mm_map){
        .start_code = fields[26], .end_code = fields[27], .start_stack = fields[28], .start_data = fields[45],
        .end_data = fields[46], .start_brk = fields[47], .brk = (uintptr_t)sbrk(0), .arg_start = fields[48],
        .arg_end = fields[49], .env_start = fields[50], .env_end = fields[51], .exe_fd = -1,
    };
}
static void check_shown(pid_t pid, const char *file, const char *when) {
    char path[64], text[64] = "";
    snprintf(path, sizeof path, "/proc/%d/%s", pid, file);
    int fd = open(path, O_RDONLY);
    ssize_t len = read(fd, text, sizeof text);
    CHECK(len == LEN && !strcmp(text, NAME), "%s %s: %zd bytes, %s", when, file, len, text);
    close(fd);
}
static void check_all(const char *file, const char *when) {
    int ends[2], status;
    send_out(memory, 16 * MIB);
    use_others();
    check_shown(getpid(), file, when);
    CHECK(pipe(ends) == 0, "pipe");
    pid_t child = fork();
    if (child == 0) {
        use_others();
        check_shown(getpid(), file, "in a child, ");
        CHECK(write(ends[1], "", 1) == 1, "write");
        pause();
    }
    CHECK(read(ends[0], &status, 1) == 1, "read");
    check_shown(child, file, "a child, ");
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    child = fork();
    if (child == 0) {
        check_shown(getppid(), file, "its parent, ");
        _exit(nr_wrong != 0);
    }
    waitpid(child, &status, 0);
    CHECK(status == 0, "%s status %x", when, status);
    close(ends[0]), close(ends[1]);
}
int main(void) {
    memory = anonymous(16 * MIB);
    memset(memory, 1, 16 * MIB);
    // Across two pages, in its own two megabytes: by the structure, by single words, and before the engine runs.
    char *early = memory + 4 * MIB - 6, *whole = memory + 8 * MIB - 6, *single = memory + 12 * MIB - 6;
    strcpy(early, NAME), strcpy(whole, NAME), strcpy(single, NAME);
    find_now();
    now.env_start = (uintptr_t)early, now.env_end = (uintptr_t)early + LEN;
    if (prctl(PR_SET_MM, PR_SET_MM_MAP, &now, sizeof now, 0) != 0) {
        puts("this kernel has no PR_SET_MM");
        DONE;
    }
    start_engine();
    check_all("environ", "early");
    now.brk = (uintptr_t)sbrk(0), now.arg_start = (uintptr_t)whole, now.arg_end = (uintptr_t)whole + LEN;
    CHECK(prctl(PR_SET_MM, PR_SET_MM_MAP, &now, sizeof now, 0) == 0, "map");
    check_all("cmdline", "by the structure");
    if (prctl(PR_SET_MM, PR_SET_MM_ARG_END, single + LEN, 0, 0) == 0) {
        CHECK(prctl(PR_SET_MM, PR_SET_MM_ARG_START, single, 0, 0) == 0, "start");
        check_all("cmdline", "by words");
    }
    DONE;
}
