// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M 64M
// Blocks of malloc that lie beside managed memory, within the same 2 MiB. They are allocated first. Then mappings are
// made next to them, until all is managed, and the blocks are changed in size and freed. The program limits its
// addresses to 2 GB and starts itself again: this decides where a library may keep such blocks.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { BLOCKS = 3000, MAPPINGS = 60, MIB = 1 << 20 };

static unsigned char *blocks[BLOCKS], *mappings[MAPPINGS];
static size_t sizes[BLOCKS];

static int is_right(int number)
{
    for (size_t at = 0; at < sizes[number]; at++)
        if (blocks[number][at] != (unsigned char)(number + at))
            return 0;
    return 1;
}

static void fill(int number)
{
    for (size_t at = 0; at < sizes[number]; at++)
        blocks[number][at] = number + at;
}

int main(int nr_args, char **args)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    if (nr_args == 1) {
        struct rlimit limit = {2000000000, 2000000000};
        if (setrlimit(RLIMIT_AS, &limit) != 0)
            return puts("FAIL setrlimit"), 1;
        execl("/proc/self/exe", args[0], "again", NULL);
        return puts("FAIL exec"), 1;
    }
    for (int number = 0; number < BLOCKS; number++) {
        sizes[number] = 16 + number * 37 % 600;
        blocks[number] = malloc(sizes[number]);
        fill(number);
    }
    for (int number = 0; number < MAPPINGS; number++) {
        mappings[number] = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(mappings[number], number + 1, MIB);
    }
    for (int round = 0; round < 3; round++) {
        for (int number = round; number < BLOCKS; number += 3) {
            if (!is_right(number))
                return printf("FAIL block %d is wrong\n", number), 1;
            size_t before = sizes[number];
            sizes[number] = before * 2 + 100;
            blocks[number] = realloc(blocks[number], sizes[number]);
            size_t grown = sizes[number];
            sizes[number] = before;
            if (!is_right(number))
                return printf("FAIL block %d is wrong after realloc\n", number), 1;
            sizes[number] = grown;
            fill(number);
        }
    }
    for (int number = 0; number < BLOCKS; number++) {
        if (!is_right(number))
            return printf("FAIL block %d is wrong at the end\n", number), 1;
        free(blocks[number]);
    }
    for (int number = 0; number < MAPPINGS; number++)
        for (int at = 0; at < MIB; at += 4096)
            if (mappings[number][at] != number + 1)
                return printf("FAIL mapping %d at %d\n", number, at), 1;
    puts("ok");
    return 0;
}
