/* Sorts four times as many bytes as may be in RAM: sort [BUDGET_MIB]. */
#include <folioswap.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t random_state = 42;

static uint64_t next_random(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static int compare(const void *left, const void *right) {
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return a < b ? -1 : a > b;
}

int main(int argc, char **argv) {
    size_t budget = (size_t)(argc > 1 ? atol(argv[1]) : 64) << 20;
    size_t count = 4 * budget / sizeof(uint64_t), run = budget / 2 / sizeof(uint64_t), at, from, out;
    folioswap_options options = FOLIOSWAP_OPTIONS;
    folioswap_stats stats = FOLIOSWAP_STATS;
    folioswap *pool;
    void *unsorted, *sorted;
    uint64_t *numbers, *merged, sum = 0, check = 0;
    size_t heads[64];

    options.memory = budget;
    if (folioswap_open(&options, &pool) || folioswap_map(pool, 4 * budget, &unsorted) ||
        folioswap_map(pool, 4 * budget, &sorted)) {
        fprintf(stderr, "%s\n", folioswap_message());
        return 1;
    }
    numbers = unsorted;
    merged = sorted;
    for (at = 0; at < count; at++)
        sum += numbers[at] = next_random();
    /* Runs of half the budget are sorted in RAM, then merged: each pass reads memory in order. */
    for (at = 0; at < count; at += run)
        qsort(numbers + at, run, sizeof *numbers, compare);
    for (from = 0; from < count / run; from++)
        heads[from] = from * run;
    for (out = 0; out < count; out++) {
        size_t least = 64;
        for (from = 0; from < count / run; from++)
            if (heads[from] < (from + 1) * run && (least == 64 || numbers[heads[from]] < numbers[heads[least]]))
                least = from;
        merged[out] = numbers[heads[least]++];
    }
    for (at = 0; at < count; at++) {
        check += merged[at];
        if (at && merged[at - 1] > merged[at])
            return 2;
    }
    folioswap_get_stats(pool, &stats);
    printf("sorted %zu MiB in %zu MiB: %s; %zu MiB read, %zu MiB written\n", 4 * budget >> 20, budget >> 20,
           sum == check ? "right" : "WRONG", (size_t)stats.swapped_in_bytes >> 20, (size_t)stats.swapped_out_bytes >> 20);
    folioswap_close(pool);
    return sum != check;
}
