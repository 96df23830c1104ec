/* Usage: fill MIB [hold]. Fills memory with words that do not compress, then checks them, or with `hold` waits to be
 * killed. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static uint64_t word_at(uint64_t place)
{
    uint64_t x = place + 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

int main(int argc, char **argv)
{
    uint64_t nr_words = (argc > 1 ? strtoull(argv[1], NULL, 10) : 1) << 17, bad = 0;
    uint64_t *words = malloc(nr_words * sizeof(*words));
    if (!words) {
        puts("no memory");
        return 9;
    }
    for (uint64_t i = 0; i < nr_words; i++)
        words[i] = word_at(i);
    puts("filled");
    fflush(stdout);
    if (argc > 2)
        for (;;)
            pause();
    for (uint64_t i = 0; i < nr_words; i++)
        bad += words[i] != word_at(i);
    printf("%llu bad words\n", (unsigned long long)bad);
    return bad != 0;
}
