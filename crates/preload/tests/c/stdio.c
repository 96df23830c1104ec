/* Buffered streams, with the program's side in memory that is not in RAM. */
#include "check.h"

int main(void) {
    size_t len = 40 * MIB;
    char *region = map(len);
    const char *folder = getenv("TEST_FOLDER");
    char path[4096];
    snprintf(path, sizeof path, "%s/stdio.%d", folder ? folder : "/var/tmp", getpid());
    FILE *file = fopen(path, "w+");
    CHECK(file && remove(path) == 0);

    fill(region, len, 21);
    send_out(region, len);
    CHECK(fwrite(region, 1, 7, file) == 7);
    CHECK(fwrite(region + 7, 1000, (len - 7) / 1000, file) == (len - 7) / 1000);
    size_t tail = (len - 7) % 1000;
    CHECK(fwrite(region + len - tail, 1, tail, file) == tail && fflush(file) == 0);
    CHECK(madvise(region, len, MADV_DONTNEED) == 0);
    rewind(file);
    CHECK(fread(region, 4096, len / 4096, file) == len / 4096);
    CHECK(holds(region, len, 21) && fgetc(file) == EOF && feof(file));

    /* Lines, longer than any buffer. */
    rewind(file);
    CHECK(ftruncate(fileno(file), 0) == 0);
    char *text = region + FOLIO - 100;
    for (int line = 0; line < 40; line++) {
        memset(text, 'a' + line % 26, 100000);
        text[100000] = 0;
        send_out(region, 2 * FOLIO);
        CHECK(fputs(text, file) >= 0 && fputc('\n', file) == '\n');
        CHECK(fprintf(file, "%d %s\n", line, "short") > 0);
    }
    CHECK(fflush(file) == 0);
    rewind(file);
    char *line = NULL;
    size_t room = 0;
    for (int number = 0; number < 40; number++) {
        CHECK(getline(&line, &room, file) == 100001 && line[0] == 'a' + number % 26 && line[99999] == line[0]);
        send_out(region, FOLIO);
        CHECK(fgets(region + 10, 1000, file) && atoi(region + 10) == number);
    }
    free(line);
    CHECK(fclose(file) == 0);

    /* A buffer of the program's own in managed memory, and many streams at once with a busy heap. */
    FILE *streams[50];
    for (int i = 0; i < 50; i++) {
        CHECK((streams[i] = tmpfile()));
        CHECK(setvbuf(streams[i], region + i * 65536, _IOFBF, 65536) == 0);
    }
    for (int round = 0; round < 200; round++) {
        char *garbage = malloc(MIB);
        memset(garbage, round, MIB);
        if (round % 20 == 0)
            send_out(region, 2 * FOLIO);
        for (int i = 0; i < 50; i++)
            CHECK(fprintf(streams[i], "%d:%d\n", i, round) > 0);
        if (round % 3)
            free(garbage);
    }
    for (int i = 0; i < 50; i++) {
        rewind(streams[i]);
        for (int round = 0; round < 200; round++) {
            int a, b;
            CHECK(fscanf(streams[i], "%d:%d\n", &a, &b) == 2 && a == i && b == round);
        }
        CHECK(fclose(streams[i]) == 0);
    }
    return 0;
}
