// EXPECT: exit 0, last line "ok"
// BUDGETS: 64M
/* Calls that lock memory and are refused lock nothing more than was locked before: neither what mlock2 would lock on
 * fault, nor memory without access, which leaves RAM once it is opened, as other memory. */
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

static size_t nr_in_ram(char *memory) {
    static uint64_t entries[(LEN - 16 * MIB) / PAGE];
    int pagemap = open("/proc/self/pagemap", O_RDONLY);
    size_t nr = 0;
    CHECK(pread(pagemap, entries, sizeof entries, (uintptr_t)memory / PAGE * 8) == sizeof entries, "pagemap");
    close(pagemap);
    for (size_t at = 0; at < (LEN - 16 * MIB) / PAGE; at++) nr += entries[at] >> 63;
    return nr;
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
    memory += 16 * MIB;
    CHECK(mlock(memory, 4 * PAGE) == 0, "mlock of little");
    CHECK(mlock(memory, LEN - 16 * MIB) == -1 && errno == ENOMEM, "mlock of more than the limit");
    char *reserved = mmap(NULL, RESERVED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mlock(reserved, 4 * PAGE) == -1 && errno == ENOMEM, "mlock without access");
    CHECK(mlock(reserved, RESERVED) == -1 && errno == ENOMEM, "mlock beyond the limit");
    CHECK(mprotect(reserved, RESERVED, PROT_READ | PROT_WRITE) == 0, "mprotect");
    fill(reserved, RESERVED);
    CHECK(getenv("FOLIOSWAP_RUN") == NULL || resident_mib() < 128, "%zu MiB are in RAM", resident_mib());
    CHECK(getenv("FOLIOSWAP_RUN") == NULL || nr_in_ram(memory) < 6144, "%zu pages are in RAM", nr_in_ram(memory));
    CHECK(wrong_pages(reserved, RESERVED) == 0, "what was reserved");
    DONE;
}
