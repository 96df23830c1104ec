// EXPECT: exit 0, last line "ok"
// BUDGETS: 48M
// A database's snapshot in the background: a child writes the table of the moment of the fork to a file, straight from
// memory, and its parent changes records in what is written already and in what is not. The file must have the old
// records, the parent the new ones. The snapshots follow each other, each from a table that the last one shared.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RECORD = 4096, RECORDS = 48 << 10, SNAPSHOTS = 2, QUARTERS = 4, PIECE = 3 << 20 };

static uint64_t (*table)[RECORD / 8];
static uint32_t changes[RECORDS];

static void fail(const char *what) {
    printf("FAIL %s: %s\n", what, strerror(errno));
    exit(1);
}

static void write_record(uint64_t *record, uint64_t number, uint64_t version) {
    for (int word = 0; word < RECORD / 8; word++) record[word] = (number << 32 | version) * 0x9e3779b97f4a7c15u + word;
}

static void check_record(const uint64_t *record, uint64_t number, uint64_t version, const char *where) {
    for (int word = 0; word < RECORD / 8; word++) {
        if (record[word] == (number << 32 | version) * 0x9e3779b97f4a7c15u + word) continue;
        printf("FAIL %s: record %lu, version %lu, word %d: %lx\n", where, number, version, word, record[word]);
        exit(1);
    }
}

// The child: a quarter, then the parent's turn.
static void dump(int file, int turn, int done) {
    char byte = 0;
    size_t quarter = (size_t)RECORDS * RECORD / QUARTERS;
    for (int part = 0; part < QUARTERS; part++) {
        for (size_t at = part * quarter, end = at + quarter; at < end;) {
            ssize_t wrote = write(file, (char *)table + at, end - at < PIECE ? end - at : PIECE);
            if (wrote <= 0) _exit(2);
            at += wrote;
        }
        if (write(done, &byte, 1) != 1 || read(turn, &byte, 1) != 1) _exit(3);
    }
    _exit(0);
}

static void snapshot(int file) {
    static uint32_t before[RECORDS];
    static uint64_t record[RECORD / 8];
    int turn[2], done[2], status;
    char byte = 0;
    memcpy(before, changes, sizeof before);
    if (ftruncate(file, 0) || lseek(file, 0, SEEK_SET) || pipe(turn) || pipe(done)) fail("set-up");
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) dump(file, turn[0], done[1]);
    close(turn[0]), close(done[1]);
    for (int part = 0; part < QUARTERS; part++) {
        if (read(done[0], &byte, 1) != 1) break;
        for (int at = part; at < RECORDS; at += 61) write_record(table[at], at, ++changes[at]);
        if (write(turn[1], &byte, 1) != 1) fail("turn");
    }
    if (waitpid(child, &status, 0) != child || status != 0) printf("FAIL child: %x\n", status), exit(1);
    close(turn[1]), close(done[0]);
    for (int at = 0; at < RECORDS; at++) {
        if (pread(file, record, RECORD, (off_t)at * RECORD) != RECORD) fail("pread");
        check_record(record, at, before[at], "snapshot");
    }
    for (int at = 0; at < RECORDS; at++) check_record(table[at], at, changes[at], "table");
}

int main(void) {
    char path[] = "snapshotXXXXXX";
    int file = mkstemp(path);
    if (file < 0 || unlink(path)) fail("mkstemp");
    table = malloc((size_t)RECORDS * RECORD);
    if (!table) fail("malloc");
    for (int at = 0; at < RECORDS; at++) write_record(table[at], at, 0);
    for (int round = 0; round < SNAPSHOTS; round++) snapshot(file);
    puts("ok");
}
