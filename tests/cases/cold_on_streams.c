// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// Short texts and items from memory that has left RAM, on a stream without a buffer, as stderr and C++'s cerr are; and
// a line that is longer than what is held at a time.
#include "cold.h"
int main(void) {
    start_engine();
    char *memory = anonymous(64 * MIB);
    int file = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    FILE *stream = fdopen(file, "r+");
    setvbuf(stream, NULL, _IONBF, 0);
    memset(memory, 'x', 100);
    send_out(memory, PAGE);
    CHECK(fputs(memory, stream) >= 0, "fputs");
    send_out(memory, PAGE);
    CHECK(fwrite(memory, 1, 100, stream) == 100, "fwrite of 100");
    send_out(memory, PAGE);
    CHECK(fwrite(memory, 1, 8, stream) == 8, "fwrite of 8");
    CHECK(lseek(file, 0, SEEK_END) == 208, "%ld bytes", (long)lseek(file, 0, SEEK_END));
    rewind(stream);
    memset(memory, 0, PAGE);
    send_out(memory, PAGE);
    CHECK(fread(memory, 1, 100, stream) == 100 && memory[0] == 'x' && memory[99] == 'x', "fread of 100");
    send_out(memory, PAGE);
    CHECK(fread(memory, 4, 5, stream) == 5, "fread of items");
    send_out(memory, PAGE);
    CHECK(fread(memory, 100, 2, stream) == 0 && feof(stream), "fread at the end");
    memset(memory, 'y', 48 * MIB);
    send_out(memory, 49 * MIB);
    use_others();
    fflush(stdout);
    int saved = dup(1), other = open("/tmp", O_TMPFILE | O_RDWR, 0600);
    dup2(other, 1);
    int put = puts(memory), flushed = fflush(stdout);
    dup2(saved, 1);
    CHECK(put != EOF && flushed == 0, "puts: %d", put);
    CHECK(lseek(other, 0, SEEK_END) == 48 * MIB + 1, "%ld bytes", (long)lseek(other, 0, SEEK_END));
    DONE;
}
