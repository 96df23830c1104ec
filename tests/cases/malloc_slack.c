// EXPECT: exit 0, last line "ok"
// Large blocks of malloc have a few bytes behind them, as those of the C library have: reading and writing a little
// too far is an error that goes unseen there.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void) {
    static const size_t sizes[] = {8 << 20, 10 << 20, 16 << 20, (16 << 20) - 1};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t size = sizes[i];
        volatile char *first = malloc(size), *second = malloc(size);
        memset((char *)first, 1, size);
        memset((char *)second, 2, size);
        first[size] = second[size] = first[size + 7] = 77;
        if (first[0] != 1 || second[0] != 2) return printf("%zu: a block lies right behind another\n", size), 1;
        volatile char *grown = realloc((char *)first, 2 * size);
        grown[2 * size] = grown[2 * size + 7];
        free((char *)grown);
        free((char *)second);
    }
    puts("ok");
    return 0;
}
