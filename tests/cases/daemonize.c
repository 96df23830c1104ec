// EXPECT: exit 0, last line "ok"
// BUDGETS: 48M 96M
// A program that goes into the background: it forks twice, by the book, once its data is loaded, and those that loaded
// it are gone when their grandchild uses it, adds to it, and has workers of its own. Who waits for it was forked before
// there was any data.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORDS = 20 << 20, MORE = 4 << 20, WORKERS = 3, ANSWER_MS = 60000 };

static int answer;

static void tell(const char *what, int status) {
    dprintf(answer, "%s", what);
    _exit(status);
}

static void need(int holds, const char *what) {
    if (!holds) tell(what, 1);
}

static uint64_t word(uint64_t at) { return (at + 1) * 0x9e3779b97f4a7c15u ^ at >> 7; }

static void background(uint64_t *data) {
    for (uint64_t at = 0; at < WORDS; at++) {
        need(data[at] == word(at), "FAIL inherited data");
        data[at] += at;
    }
    uint64_t *more = malloc(MORE * sizeof *more);
    need(more != NULL, "FAIL malloc");
    for (uint64_t at = 0; at < MORE; at++) more[at] = data[at * 5];
    for (int number = 0; number < WORKERS; number++) {
        pid_t worker = fork();
        need(worker >= 0, "FAIL fork of a worker");
        if (worker == 0) {
            for (uint64_t at = number; at < WORDS; at += WORKERS) {
                if (data[at] != word(at) + at) _exit(2);
                data[at] = 0;
            }
            _exit(0);
        }
        int status;
        need(waitpid(worker, &status, 0) == worker && status == 0, "FAIL worker");
    }
    for (uint64_t at = 0; at < MORE; at++) {
        need(more[at] == word(at * 5) + at * 5, "FAIL added data");
        need(data[at * 5] == more[at], "FAIL data after the workers");
    }
    tell("ok", 0);
}

static void load(void) {
    uint64_t *data = malloc(WORDS * sizeof *data);
    need(data != NULL, "FAIL malloc of the data");
    for (uint64_t at = 0; at < WORDS; at++) data[at] = word(at);
    int ended[2];
    char byte;
    need(pipe(ended) == 0, "FAIL pipe");
    pid_t middle = fork();
    need(middle >= 0, "FAIL first fork");
    if (middle > 0) _exit(0);
    need(setsid() > 0, "FAIL setsid");
    pid_t last = fork();
    need(last >= 0, "FAIL second fork");
    if (last > 0) exit(0); // by way of what is to run at exit
    // The end of the pipe is in nobody's hands once both are gone.
    close(ended[1]);
    need(read(ended[0], &byte, 1) == 0, "FAIL end of the parents");
    need(chdir("/") == 0, "FAIL chdir");
    int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; fd++) dup2(null, fd);
    background(data);
}

int main(void) {
    int ends[2];
    if (pipe(ends)) return 2;
    pid_t loader = fork();
    if (loader < 0) return 2;
    if (loader == 0) {
        close(ends[0]);
        answer = ends[1];
        load();
    }
    close(ends[1]);
    char text[64] = "";
    size_t length = 0;
    struct pollfd readable = {ends[0], POLLIN, 0};
    for (ssize_t got = 1; got > 0 && length < sizeof text - 1; length += got > 0 ? got : 0) {
        if (poll(&readable, 1, ANSWER_MS) != 1) return puts("FAIL no answer from the background"), 1;
        got = read(ends[0], text + length, sizeof text - 1 - length);
    }
    while (wait(NULL) > 0) continue;
    puts(length ? text : "FAIL ended without a word");
    return strcmp(text, "ok") != 0;
}
