// EXPECT: exit 0, last line "ok"
// BUDGETS: 96M
// ARGS: 64 68
/* 90,000 mappings, more than vm.max_map_count permits apart. The kernel makes one of them. Every fourth is used. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { NR_MAPPINGS = 90000 };

static char byte_of(int number) { return (char)(number % 251 + 1); }

int main(int nr_arguments, char **arguments) {
    size_t lens[2] = {100 << 10, 100 << 10};
    for (int one = 0; one < 2 && nr_arguments > 1; one++)
        lens[one] = (size_t)atol(arguments[one + 1 < nr_arguments ? one + 1 : 1]) << 10;
    static char *all[NR_MAPPINGS];
    for (int number = 0; number < NR_MAPPINGS; number++) {
        size_t len = lens[number % 2];
        all[number] = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (all[number] == MAP_FAILED) return printf("no memory for mapping %d\n", number), 1;
        if (number % 4 == 0) all[number][(size_t)number % len] = byte_of(number);
    }
    for (int number = 0; number < NR_MAPPINGS; number += 4)
        if (all[number][(size_t)number % lens[number % 2]] != byte_of(number))
            return printf("mapping %d is wrong\n", number), 1;
    for (int number = 0; number < NR_MAPPINGS; number++)
        if (munmap(all[number], lens[number % 2]) != 0) return puts("not unmapped"), 1;
    puts("ok");
    return 0;
}
