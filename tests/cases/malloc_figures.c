// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M 160M
/* What mallinfo2 tells grows by what is allocated, and shrinks by what is freed. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NR_SMALL = 200, SMALL = 40000, LARGE = 40 << 20, SLACK = 1 << 20 };

static int is_about(size_t value, size_t wanted) { return value + SLACK > wanted && wanted + (4 << 20) > value; }

int main(void) {
    char *volatile small[NR_SMALL], *volatile large; /* the compiler is not to leave them out */
    struct mallinfo2 first = mallinfo2();
    for (int i = 0; i < NR_SMALL; i++) small[i] = memset(malloc(SMALL), i, SMALL);
    struct mallinfo2 second = mallinfo2();
    if (!is_about(second.uordblks - first.uordblks, NR_SMALL * SMALL)) return puts("small blocks"), 1;
    if (second.arena < second.uordblks || second.hblks != first.hblks) return puts("what they lie in"), 1;
    large = memset(malloc(LARGE), 1, LARGE);
    struct mallinfo2 third = mallinfo2();
    if (third.hblks != first.hblks + 1 || !is_about(third.hblkhd - first.hblkhd, LARGE)) return puts("a large block"), 1;
    free(large);
    for (int i = 0; i < NR_SMALL; i++) free(small[i]);
    struct mallinfo2 last = mallinfo2();
    if (last.hblks != first.hblks || last.hblkhd != first.hblkhd) return puts("it was freed"), 1;
    if (last.uordblks >= second.uordblks) return puts("small blocks were freed"), 1;
    puts("ok");
    return 0;
}
