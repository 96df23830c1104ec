/* What a process had in RAM at most. */
#include <stdio.h>
#include <string.h>

/* Says "ok" if that was no more than so many MiB, or if this process has no limit. */
static int say_peak(long most_mib) {
    char line[256];
    long peak_kib = 0;
    int is_limited = 0;
    FILE *status = fopen("/proc/self/status", "r"), *maps = fopen("/proc/self/maps", "r");
    while (status && fgets(line, sizeof line, status)) sscanf(line, "VmHWM: %ld", &peak_kib);
    while (maps && fgets(line, sizeof line, maps)) is_limited |= strstr(line, "libfolioswap_preload") != NULL;
    if (is_limited && peak_kib >> 10 > most_mib) return printf("%ld MiB in RAM\n", peak_kib >> 10), 1;
    return puts("ok"), 0;
}
