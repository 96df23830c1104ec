// EXPECT: exit 0, last line "ok"
// BUDGETS: 48M
/* One thread's mremap is refused, for RLIMIT_DATA, after the kernel has unmapped the place that was reserved for it.
 * What another thread has mapped there by then stays. Nothing stays of what could not grow. */
#include "check.h"
#include <time.h>

enum { SECONDS = 3 };
static volatile int is_over;
static const size_t len = 8ul << 30, others_len = 2 << 20, written = 16 << 20;

static void *uses(void *unused) {
    for (unsigned value = 1; !is_over; value++) {
        char *mine = anonymous(others_len);
        for (int round = 0; mine != MAP_FAILED && round < 20; round++) {
            for (size_t i = 0; i < others_len; i += 65536) *(volatile unsigned *)(mine + i) = value + i;
            for (size_t i = 0; i < others_len; i += 65536)
                CHECK(*(volatile unsigned *)(mine + i) == value + (unsigned)i, "word %zu", i);
        }
        if (mine != MAP_FAILED) munmap(mine, others_len);
    }
    return unused;
}

static size_t bytes_of(const char *format) {
    char line[200];
    size_t kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status)) sscanf(line, format, &kib);
    fclose(status);
    return kib << 10;
}

int main(void) {
    char *large = anonymous(len);
    fill(large, written);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, uses, NULL) == 0, "a thread");
    usleep(50000);
    struct rlimit limit = { bytes_of("VmData: %zu") + (64 << 20), RLIM_INFINITY };
    CHECK(setrlimit(RLIMIT_DATA, &limit) == 0, "a limit");
    long nr_refused = 0;
    for (time_t end = time(NULL) + SECONDS; time(NULL) < end; nr_refused++)
        CHECK(mremap(large, len, len, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, 0) == MAP_FAILED && errno == ENOMEM, "mremap");
    const size_t before = bytes_of("VmSize: %zu");
    for (int nr = 0; nr < 20; nr++) {
        CHECK(mremap(large, len, 2 * len, MREMAP_MAYMOVE) == MAP_FAILED && errno == ENOMEM, "growing");
    }
    CHECK(bytes_of("VmSize: %zu") < before + len, "what was refused has left addresses mapped");
    is_over = 1;
    pthread_join(thread, NULL);
    CHECK(nr_refused > 100 && wrong_pages(large, written) == 0, "%ld were refused", nr_refused);
    DONE;
}
