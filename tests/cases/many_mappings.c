// EXPECT: exit 0, last line "ok"
// BUDGETS: 96M
// ARGS: 68
/* 70,000 mappings, of which the kernel makes one: more than vm.max_map_count permits apart. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { NR_MAPPINGS = 70000 };

static char byte_of(int number) { return (char)(number % 251 + 1); }

int main(int nr_arguments, char **arguments) {
    size_t len = (size_t)(nr_arguments > 1 ? atol(arguments[1]) : 100) << 10;
    static char *all[NR_MAPPINGS];
    for (int number = 0; number < NR_MAPPINGS; number++) {
        all[number] = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (all[number] == MAP_FAILED) return printf("no memory for mapping %d\n", number), 1;
        all[number][(size_t)number % len] = byte_of(number);
    }
    for (int number = 0; number < NR_MAPPINGS; number++)
        if (all[number][(size_t)number % len] != byte_of(number)) return printf("mapping %d is wrong\n", number), 1;
    for (int number = 0; number < NR_MAPPINGS; number++)
        if (munmap(all[number], len) != 0) return puts("not unmapped"), 1;
    puts("ok");
    return 0;
}
