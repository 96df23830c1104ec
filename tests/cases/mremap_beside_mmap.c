// EXPECT: exit 0, last line "ok"
// BUDGETS: 64M
// One thread moves memory by mremap and sets its protection again, while others map and unmap memory without access:
// they get the addresses that have just become free.
#include "check.h"
#include <time.h>
#define LEN (4 * MIB)
#define NR 6
static volatile int is_over;
static void *map_and_unmap(void *unused) {
    while (!is_over) {
        char *place = mmap(NULL, MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        usleep(100);
        if (place != MAP_FAILED) munmap(place, MIB);
    }
    return unused;
}
int main(void) {
    pthread_t threads[NR];
    char *memory = anonymous(LEN);
    time_t end = time(NULL) + 6;
    fill(memory, LEN);
    for (int i = 0; i < NR; i++) pthread_create(&threads[i], NULL, map_and_unmap, NULL);
    while (time(NULL) < end && !nr_wrong) {
        char *to = mmap(NULL, LEN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        CHECK(mremap(memory, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to, "mremap");
        memory = to;
        CHECK(mprotect(memory, LEN, PROT_READ | PROT_WRITE) == 0, "mprotect");
        long wrong = wrong_pages(memory, LEN);
        CHECK(wrong == 0, "%ld pages", wrong);
    }
    is_over = 1;
    for (int i = 0; i < NR; i++) pthread_join(threads[i], NULL);
    DONE;
}
