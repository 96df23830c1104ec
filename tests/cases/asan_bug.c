// EXPECT: exit 1, last line "reported"
// ARGS: freed
// CFLAGS: -O1 -fsanitize=address
// BUDGETS: 48M 96M
// A sanitizer reports a read past the end of a block, or of a block that was freed ("freed"), and ends the program with
// its own status, though the block and its shadow were swapped out.
#include <sanitizer/asan_interface.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 700, BYTES = 256 << 10 };

static const char *wanted = "heap-buffer-overflow";

static void judge(const char *report) {
    puts(strstr(report, wanted) ? "reported" : "FAIL another report");
    fflush(stdout);
}

int main(int count, char **words) {
    (void)words;
    static char *blocks[BLOCKS];
    __asan_set_error_report_callback(judge);
    for (int at = 0; at < BLOCKS; at++) {
        blocks[at] = malloc(BYTES);
        memset(blocks[at], at, BYTES);
    }
    for (int at = 0; at < BLOCKS; at++)
        for (int byte = 0; byte < BYTES; byte += 4096)
            if (blocks[at][byte] != (char)at) return printf("FAIL block %d\n", at), 2;
    volatile char *first = blocks[0];
    if (count > 1) {
        wanted = "heap-use-after-free";
        free(blocks[0]);
        printf("FAIL not reported: %d\n", first[BYTES / 2]);
    } else {
        printf("FAIL not reported: %d\n", first[BYTES]);
    }
    return 3;
}
