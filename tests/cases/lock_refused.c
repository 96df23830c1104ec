// EXPECT: exit 0, last line "ok"
// BUDGETS: 64M
/* Calls that lock memory and are refused leave nothing locked: neither what mlock2 would lock on fault, nor memory
 * without access, which leaves RAM once it is opened, as other memory. */
#include "check.h"

enum { LEN = 64 << 20, RESERVED = 256 << 20, NR_PAGES = 64, IPC_LOCK = 14 };

static size_t resident_mib(void) {
    char line[200];
    size_t kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status)) sscanf(line, "RssAnon: %zu", &kib);
    fclose(status);
    return kib >> 10;
}

static void give_up_locking(void) {
    unsigned header[2] = { 0x20080522, 0 }, sets[6];
    CHECK(syscall(SYS_capget, header, sets) == 0, "capget");
    for (int set = 0; set < 3; set++) sets[set] &= ~(1u << IPC_LOCK);
    CHECK(syscall(SYS_capset, header, sets) == 0, "capset");
    struct rlimit little = { 64 << 10, 64 << 10 };
    CHECK(setrlimit(RLIMIT_MEMLOCK, &little) == 0, "setrlimit");
}

int main(void) {
    char *memory = anonymous(LEN), *hole = memory + (8 << 20);
    fill(memory, LEN);
    CHECK(munmap(hole, PAGE) == 0, "munmap");
    CHECK(mlock2(hole, NR_PAGES * PAGE, MLOCK_ONFAULT) == -1 && errno == ENOMEM, "mlock2 of a hole");
    CHECK(madvise(hole + PAGE, (NR_PAGES - 1) * PAGE, MADV_DONTNEED) == 0, "it is locked nevertheless");
    CHECK(hole[PAGE] == 0, "it is still there");
    give_up_locking();
    CHECK(mlock2(memory, MIB, MLOCK_ONFAULT) == -1 && errno == ENOMEM, "mlock2 beyond the limit");
    CHECK(madvise(memory, MIB, MADV_DONTNEED) == 0, "what is beyond the limit is locked");
    char *reserved = mmap(NULL, RESERVED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mlock(reserved, RESERVED) == -1 && errno == ENOMEM, "mlock beyond the limit");
    CHECK(mprotect(reserved, RESERVED, PROT_READ | PROT_WRITE) == 0, "mprotect");
    fill(reserved, RESERVED);
    CHECK(getenv("FOLIOSWAP_RUN") == NULL || resident_mib() < 128, "%zu MiB are in RAM", resident_mib());
    CHECK(wrong_pages(reserved, RESERVED) == 0, "what was reserved");
    DONE;
}
