// EXPECT: exit 0, last line "ok"
// BUDGETS: 32M 40M
/* Streams get buffers of the program's before its memory runs short. What is in them then is written, and what is to be
 * read comes. */
#include "check.h"

enum { OTHERS = 80 << 20, LINES = 30000 };
static const size_t lens[] = { 4 << 10, 64 << 10, 1 << 20 };
static char static_room[2][1 << 20];

static void use_others(void) {
    char *others = anonymous(OTHERS);
    for (int round = 0; round < 2; round++)
        for (size_t at = 0; at < OTHERS; at += PAGE) others[at]++;
    munmap(others, OTHERS);
}

int main(void) {
    enum { NR = 9 };
    FILE *written[NR], *read[NR];
    long nr_put[NR] = { 0 };
    char line[64];
    for (int nr = 0; nr < NR; nr++) {
        const size_t len = lens[nr / 3];
        char *rooms[2];
        for (int i = 0; i < 2; i++) rooms[i] = nr % 3 == 0 ? anonymous(len) : nr % 3 == 1 ? malloc(len) : static_room[i];
        if (nr == 2 || nr == 5) rooms[0] = static_room[0] + (nr << 16), rooms[1] = static_room[1] + (nr << 16);
        read[nr] = tmpfile(), written[nr] = tmpfile();
        for (int i = 0; i < LINES; i++) fprintf(read[nr], "%d\n", i);
        rewind(read[nr]);
        FILE *again = fdopen(dup(fileno(read[nr])), "r");
        CHECK(nr == 8 || setvbuf(again, rooms[0], _IOFBF, len) == 0, "setvbuf");
        rewind(again);
        read[nr] = again;
        CHECK(fgets(line, sizeof line, again) && atoi(line) == 0, "the first line of %d", nr);
        CHECK(nr == 8 || setvbuf(written[nr], rooms[1], _IOFBF, len) == 0, "setvbuf");
        for (size_t put = 0; put < len * 3 / 4; nr_put[nr]++) put += fprintf(written[nr], "%ld\n", nr_put[nr]);
    }
    use_others();
    for (int nr = 0; nr < NR; nr++) {
        for (int i = 1; i < LINES; i++)
            CHECK(fgets(line, sizeof line, read[nr]) && atoi(line) == i, "line %d of %d", i, nr);
        CHECK(fflush(written[nr]) == 0, "writing %d", nr);
        rewind(written[nr]);
        for (long i = 0; i < nr_put[nr]; i++)
            CHECK(fgets(line, sizeof line, written[nr]) && atol(line) == i, "what was written to %d: line %ld", nr, i);
    }
    DONE;
}
