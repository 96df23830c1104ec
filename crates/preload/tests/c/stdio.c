/* Buffered streams, with the program's data in memory that is not in RAM. */
#include "check.h"

#include <stdarg.h>
#include <stdio_ext.h>

/* Functions that code built with -D_FORTIFY_SOURCE calls. */
int __fprintf_chk(FILE *, int, const char *, ...);
int __dprintf_chk(int, int, const char *, ...);

static int by_list(FILE *file, const char *format, ...) {
    va_list list;
    va_start(list, format);
    int result = vfprintf(file, format, list);
    va_end(list);
    return result;
}

/* Text longer than the whole budget, with arguments of every kind, more than fit into registers. */
static void formatted(FILE *file, char *text, size_t len) {
    for (int how = 0; how < 6; how++) {
        memset(text, 'a' + how, len);
        text[len] = 0;
        rewind(file);
        CHECK(ftruncate(fileno(file), 0) == 0);
        int count = 0, result = -1;
        const char *format = "%d %.3f %5s %ld %Lg %c %x %.1e %.2f %.3f %.4f %.5f %.6f %.7f %s%n %llu\n";
#define ARGUMENTS                                                                                                      \
    -7, 0.125, "ab", -5000000000L, 2.5L, 'z', 255, 1e9, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, text, &count, 1ull << 63
        errno = 0;
        switch (how) {
        case 0: result = fprintf(file, format, ARGUMENTS); break;
        case 1: result = by_list(file, format, ARGUMENTS); break;
        case 2: result = dprintf(fileno(file), format, ARGUMENTS); break;
        case 3: result = __fprintf_chk(file, 0, format, ARGUMENTS); break;
        case 4: result = __dprintf_chk(fileno(file), 0, format, ARGUMENTS); break;
        case 5: {
            FILE *before = stdout;
            stdout = file;
            result = printf(format, ARGUMENTS);
            stdout = before;
        }
        }
        const char *front = "-7 0.125    ab -5000000000 2.5 z ff 1.0e+09 1.00 2.000 3.0000 4.00000 5.000000 6.0000000 ";
        const char *end = " 9223372036854775808\n";
        CHECK(count == (int)(strlen(front) + len) && result == count + (int)strlen(end));
        CHECK(fflush(file) == 0);
        rewind(file);
        memset(text, 0, len);
        char other[128];
        CHECK(fread(other, 1, strlen(front), file) == strlen(front) && !memcmp(other, front, strlen(front)));
        CHECK(fread(text, 1, len, file) == len);
        for (size_t i = 0; i < len; i++)
            CHECK(text[i] == 'a' + how);
        CHECK(fgets(other, sizeof other, file) && !strcmp(other, end) && fgetc(file) == EOF);
        CHECK(errno == 0);
    }
    /* Short text, the error that %m prints, and a stream that cannot be written to. */
    errno = ENOENT;
    char named[200];
    rewind(file);
    CHECK(fprintf(file, "%m %s\n", "short") > 0 && errno == ENOENT);
    rewind(file);
    CHECK(fgets(named, sizeof named, file) && !strncmp(named, strerror(ENOENT), strlen(strerror(ENOENT))));
    /* A line that cannot be written is an error, short or long, of a stream that is flushed at each line. */
    int ends[2];
    CHECK(signal(SIGPIPE, SIG_IGN) != SIG_ERR && pipe(ends) == 0 && close(ends[0]) == 0);
    FILE *closed = fdopen(ends[1], "w");
    CHECK(closed && setvbuf(closed, NULL, _IOLBF, 8192) == 0);
    strcpy(text + 5000, "\n");
    for (int how = 0; how < 8; how++) {
        CHECK((how < 4   ? fprintf(closed, "%d\n", 5)
               : how < 6 ? fprintf(closed, "%s", text)
                         : fputs(text, closed)) == -1);
        CHECK(errno == EPIPE);
        clearerr(closed);
    }
    fclose(closed);
    memset(text, 'x', len);
    FILE *full = fopen("/dev/full", "w");
    CHECK(full && fprintf(full, "%s", text) == -1 && errno == ENOSPC);
    fclose(full);
}

/* A thread that is cancelled while it prints into a full pipe unwinds its own frames. This file is compiled with
   -fexceptions, so the unwinding runs the clean-up handlers. */
static FILE *full_pipe;
static int cleaned;

static void note(void *argument) {
    (void)argument;
    cleaned = 1;
}

static void *prints(void *text) {
    pthread_cleanup_push(note, NULL);
    for (;;)
        fprintf(full_pipe, "%s %.1f\n", (char *)text, 1.0);
    pthread_cleanup_pop(0);
    return text;
}

static void cancelled(char *text, size_t len) {
    memset(text, 'a', len);
    text[len] = 0;
    int ends[2];
    pthread_t thread;
    void *result;
    char bytes[1000];
    CHECK(pipe(ends) == 0 && (full_pipe = fdopen(ends[1], "w")));
    CHECK(pthread_create(&thread, NULL, prints, text) == 0);
    CHECK(read(ends[0], bytes, sizeof bytes) > 0);
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED && cleaned);
    close(ends[0]);
    __fpurge(full_pipe);
    fclose(full_pipe);
}

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

    /* Lines longer than any buffer. */
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
    formatted(file, region, 24 * MIB);
    cancelled(region, 4 * MIB);
    CHECK(fclose(file) == 0);

    /* A stream buffer in managed memory, and many streams at once with a busy heap. */
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
