// EXPECT: exit 0, last line "ok"
// BUDGETS: 32M
// NEEDS: root
// MAY SAY: fewer threads
// A user has reached the limit of threads (RLIMIT_NPROC): a child of fork can start none. In direct mode it has the
// memory of its parent, and uses more than the budget. In monitor mode it ends with the status for that, and says why.
// Before that, threads that the C library makes look up names (getaddrinfo_a).
#define _GNU_SOURCE
#include <dirent.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LEN = 64 << 20, PAGE = 4096, NR_NAMES = 16, CANNOT_GO_ON = 70 };

static char *memory;

static void check(int is_right, const char *what) {
    if (is_right) return;
    printf("wrong: %s\n", what);
    fflush(stdout);
    _exit(1);
}

/* Each page differs from the others, and from itself in another round. */
static void fill(int round) {
    for (unsigned at = 0; at < LEN; at += PAGE) *(unsigned *)(memory + at) = at + round;
}

static int is_right(int round) {
    for (unsigned at = 0; at < LEN; at += PAGE)
        if (*(unsigned *)(memory + at) != at + round) return 0;
    return 1;
}

static void look_up(void) {
    static char names[NR_NAMES][16];
    struct gaicb requests[NR_NAMES], *list[NR_NAMES];
    memset(requests, 0, sizeof requests);
    for (int at = 0; at < NR_NAMES; at++) {
        snprintf(names[at], sizeof names[at], "127.0.0.%d", at + 1);
        requests[at].ar_name = names[at];
        list[at] = &requests[at];
    }
    check(getaddrinfo_a(GAI_NOWAIT, list, NR_NAMES, NULL) == 0, "getaddrinfo_a");
    fill(1);
    for (int at = 0; at < NR_NAMES; at++) {
        const struct gaicb *one = list[at];
        while (gai_error(list[at]) == EAI_INPROGRESS) gai_suspend(&one, 1, NULL);
        check(gai_error(list[at]) == 0, "gai_error");
        unsigned char *bytes = (unsigned char *)requests[at].ar_result->ai_addr;
        check(bytes[4] == 127 && bytes[7] == at + 1, "an address");
        freeaddrinfo(requests[at].ar_result);
    }
    check(is_right(1), "memory beside look-ups");
}

/* How many threads there are whose names begin so. */
static int threads(const char *begin) {
    int number = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; (task = readdir(tasks));) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
        FILE *file = task->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (!file) continue;
        number += fgets(name, sizeof name, file) && strncmp(name, begin, strlen(begin)) == 0;
        fclose(file);
    }
    closedir(tasks);
    return number;
}

int main(void) {
    memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    look_up();
    for (int waited = 0; threads("") > threads("folioswap") + 1; waited++) { /* those of the C library end */
        check(waited < 1000, "the C library's threads");
        usleep(10000);
    }
    fill(2);
    int is_monitored = threads("folioswap-moni") > 0;
    uid_t user = 1000000 + getpid(); /* nobody else's */
    check(setresuid(user, user, user) == 0, "setresuid");
    struct rlimit limit = {threads("") + 1, threads("") + 1};
    check(setrlimit(RLIMIT_NPROC, &limit) == 0, "setrlimit");
    limit.rlim_cur = limit.rlim_max = threads("") + 1; /* the engine may have started some */
    setrlimit(RLIMIT_NPROC, &limit);
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) return puts("no child is possible\nok"), 0;
    if (child == 0) {
        check(is_right(2), "the child's memory");
        fill(3);
        check(is_right(3), "what the child has written");
        _exit(0);
    }
    int status;
    check(waitpid(child, &status, 0) == child, "waitpid");
    int wanted = is_monitored ? CANNOT_GO_ON : 0;
    if (!WIFEXITED(status) || WEXITSTATUS(status) != wanted) return printf("the child's status: %x\n", status), 1;
    check(is_right(2), "the parent's memory");
    puts("ok");
    return 0;
}
