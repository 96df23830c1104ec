// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// LIMIT_S: 120
// The extents of a file, so many that their list is longer than a MiB, in memory that has left RAM.
#include "cold.h"
#include <linux/fiemap.h>
#include <linux/fs.h>
#define NR 20000
int main(void) {
    start_engine();
    char *memory = anonymous(8 * MIB);
    size_t len = sizeof(struct fiemap) + NR * sizeof(struct fiemap_extent);
    memory = (char *)(((uintptr_t)memory + 2 * MIB - 1) & -(2 * MIB));
    int file = open("/var/tmp", O_TMPFILE | O_RDWR, 0600);
    for (long i = 0; i < NR; i++)
        if (fallocate(file, 0, i * 2 * PAGE, PAGE)) return puts("ok"), errno != EOPNOTSUPP;
    struct fiemap *map = (struct fiemap *)(memory + MIB);
    memset(map, 0, len);
    map->fm_length = -1, map->fm_extent_count = NR;
    send_out(map, len);
    use_others();
    int result = ioctl(file, FS_IOC_FIEMAP, map);
    if (result == -1 && errno == EOPNOTSUPP) {
        puts("no extents on this file system");
        DONE;
    }
    CHECK(result == 0, "FIEMAP");
    // A file system may join some.
    for (unsigned i = 1; i < map->fm_mapped_extents; i++)
        CHECK(map->fm_extents[i].fe_logical > map->fm_extents[i - 1].fe_logical, "extent %u", i);
    CHECK(map->fm_mapped_extents > 0 && map->fm_extents[0].fe_length >= PAGE, "%u extents", map->fm_mapped_extents);
    DONE;
}
