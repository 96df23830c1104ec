// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// The C library's walks through folders, and what it opens by names, while the names, and what it has noted of the
// folders itself, have left RAM.
#include "cold.h"
#include <dirent.h>
#include <fts.h>
#include <ftw.h>
#include <glob.h>
#include <mntent.h>
#include <nl_types.h>
#include <sys/stat.h>
#include <wordexp.h>
#define ROOT "/tmp/folioswap-walks"
static int nr_seen;
static int see(const char *path, const struct stat *about, int type, struct FTW *at) {
    (void)about, (void)at;
    CHECK(type != FTW_NS && type != FTW_DNR, "%s: %d", path, type);
    if (nr_seen++ % 3 == 0) use_others();
    return 0;
}
static char *cold(const char *text) { return strcpy(anonymous(2 * MIB), text); }
int main(void) {
    start_engine();
    unsetenv("TMPDIR"); // which tempnam would prefer
    char root[64], command[400];
    snprintf(root, sizeof root, ROOT "-%d", getpid());
    snprintf(command, sizeof command, "mkdir -p %s/a/b/c %s/d/e && touch %s/a/1 %s/a/b/2 %s/a/b/c/3 %s/d/e/4 %s/5", root,
             root, root, root, root, root, root);
    CHECK(system(command) == 0 && chdir(root) == 0, "folders");
    char *here = cold("."), *within = cold("*/*"), *file = cold("a/1"), *words = cold("*"), *folder = cold("a");
    char *mounts = cold("/proc/mounts"), *none = cold("./none.cat"), *prefix = cold("x");
    char **roots = (char **)cold("");
    roots[0] = here, roots[1] = 0;
    use_others();
    CHECK(nftw(here, see, 20, 0) == 0 && nr_seen == 11, "nftw saw %d", nr_seen);
    CHECK(nftw(here, see, 1, FTW_CHDIR | FTW_DEPTH) == 0 && nr_seen == 22, "nftw saw %d", nr_seen);
    for (int turn = 0; turn < 2; turn++) {
        FTS *walk = fts_open(roots, turn ? FTS_PHYSICAL | FTS_NOCHDIR : FTS_LOGICAL, 0);
        int nr_entries = 0;
        for (FTSENT *entry; (entry = fts_read(walk)); nr_entries++) {
            CHECK(entry->fts_info != FTS_NS && entry->fts_info != FTS_DNR && entry->fts_info != FTS_ERR, "fts %s: %s",
                  entry->fts_path, strerror(entry->fts_errno));
            if (nr_entries % 3 == 0) use_others();
        }
        CHECK(nr_entries == 17, "fts: %d, turn %d", nr_entries, turn);
        fts_close(walk);
    }
    glob_t found;
    use_others();
    CHECK(glob(within, 0, 0, &found) == 0 && found.gl_pathc == 3, "glob");
    use_others();
    CHECK(glob(file, 0, 0, &found) == 0 && found.gl_pathc == 1, "glob of a name");
    wordexp_t expanded;
    use_others();
    CHECK(wordexp(words, &expanded, 0) == 0 && expanded.we_wordc == 3, "wordexp");
    struct dirent **list;
    use_others();
    CHECK(scandir(here, &list, 0, alphasort) == 5, "scandir");
    DIR *opened = opendir(here);
    int nr_names = 0;
    for (use_others(); readdir(opened); use_others()) nr_names++;
    CHECK(nr_names == 5, "readdir: %d", nr_names);
    use_others();
    FILE *table = setmntent(mounts, "r");
    CHECK(table && getmntent(table), "setmntent");
    use_others();
    CHECK(catopen(none, 0) == (nl_catd)-1 && errno == ENOENT, "catopen");
    use_others();
    char *name = tempnam(folder, prefix);
    CHECK(name && strncmp(name, "a/x", 3) == 0, "tempnam: %s", name);
    snprintf(command, sizeof command, "rm -r %s", root);
    CHECK(system(command) == 0, "removed");
    DONE;
}
