// EXPECT: exit 0, last line "ok"
// BUDGETS: 24M
// MAPPERS: move copy
// NEEDS: root device:/dev/fuse
// A FUSE file that is not cached: the kernel keeps the pages of a read until the server has answered, while a thread
// advises that they leave RAM. By calls of the C library and by others, long and short, and by a stream without buffer.
#include "check.h"
#include <linux/fuse.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#define LEN (4 * MIB)
#define STEP (128ul << 10)
static char *memory;
static volatile int is_over;
static void serve(int device) {
    static char in[2 * MIB];
    static uint64_t out[STEP / 8];
    while (read(device, in, sizeof in) > 0) {
        struct fuse_in_header *asked = (void *)in;
        struct fuse_out_header head = {.unique = asked->unique};
        void *about = asked + 1;
        size_t len = 0;
        memset(out, 0, 256);
        if (asked->opcode == FUSE_INIT) {
            *(struct fuse_init_out *)out = (struct fuse_init_out){.major = 7, .minor = 31, .max_write = MIB,
                                                                  .flags = FUSE_MAX_PAGES, .max_pages = 256};
            len = sizeof(struct fuse_init_out);
        } else if (asked->opcode == FUSE_LOOKUP || asked->opcode == FUSE_GETATTR) {
            int is_root = asked->opcode == FUSE_GETATTR && asked->nodeid == 1;
            struct fuse_attr attributes = {.ino = is_root ? 1 : 2, .mode = is_root ? S_IFDIR | 0755 : S_IFREG | 0644,
                                           .nlink = 1, .size = is_root ? 0 : 64 * LEN, .blksize = PAGE};
            if (asked->opcode == FUSE_LOOKUP)
                *(struct fuse_entry_out *)out = (struct fuse_entry_out){2, 0, 1000, 1000, 0, 0, attributes};
            else
                *(struct fuse_attr_out *)out = (struct fuse_attr_out){1000, 0, 0, attributes};
            len = asked->opcode == FUSE_LOOKUP ? sizeof(struct fuse_entry_out) : sizeof(struct fuse_attr_out);
        } else if (asked->opcode == FUSE_OPEN) {
            ((struct fuse_open_out *)out)->open_flags = FOPEN_DIRECT_IO;
            len = sizeof(struct fuse_open_out);
        } else if (asked->opcode == FUSE_READ) {
            struct fuse_read_in *part = about;
            usleep(2000);
            len = part->size < sizeof out ? part->size : sizeof out;
            for (size_t at = 0; at < len; at += 8) out[at / 8] = (part->offset + at) * 7 + 1;
        } else if (asked->opcode == FUSE_FORGET || asked->opcode == FUSE_INTERRUPT) {
            continue;
        } else if (asked->opcode != FUSE_RELEASE && asked->opcode != FUSE_FLUSH) {
            head.error = -ENOSYS;
        }
        head.len = sizeof head + len;
        struct iovec answer[2] = {{&head, sizeof head}, {out, len}};
        writev(device, answer, len ? 2 : 1);
    }
}
static void *advise(void *unused) {
    while (!is_over) madvise(memory, LEN, MADV_PAGEOUT), usleep(100);
    return unused;
}
int main(void) {
    char folder[] = "/tmp/uncachedXXXXXX", options[100], path[100];
    int device = open("/dev/fuse", O_RDWR);
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
    if (!mkdtemp(folder) || unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("uncached", folder, "fuse", 0, options))
        return printf("not mounted: %s\n", strerror(errno)), 1;
    pid_t server = fork();
    if (server == 0) serve(device), _exit(0);
    close(device);
    snprintf(path, sizeof path, "%s/file", folder);
    int file = open(path, O_RDONLY);
    CHECK(file >= 0, "open");
    memory = anonymous(LEN);
    char *other = anonymous(48 * MIB);
    pthread_t thread;
    pthread_create(&thread, NULL, advise, NULL);
    FILE *stream = fdopen(dup(file), "r");
    setvbuf(stream, NULL, _IONBF, 0);
    for (int round = 0; round < 6; round++) {
        size_t step = round == 4 ? PAGE : round == 5 ? 200 : STEP, len = round < 4 ? LEN : 100 * step;
        fseek(stream, round * LEN, SEEK_SET);
        memset(other, round, 48 * MIB);
        memset(memory, 1, LEN);
        for (size_t at = 0; at < len; at += step) {
            off_t offset = round * LEN + at;
            struct iovec list[2] = {{memory + at, STEP / 2}, {memory + at + STEP / 2, STEP / 2}};
            long got = round == 0   ? pread(file, memory + at, step, offset)
                       : round == 1 ? syscall(SYS_pread64, file, memory + at, STEP, offset)
                       : round == 2 ? preadv(file, list, 2, offset)
                       : round == 3 ? syscall(SYS_preadv, file, list, 2, offset, 0)
                       : round == 4 ? pread(file, memory + at, step, offset)
                                    : (long)fread(memory + at, 1, step, stream);
            CHECK(got == (long)step, "round %d: %ld", round, got);
        }
        long nr_others = 0;
        for (size_t at = 0; at < len; at += 8) nr_others += *(uint64_t *)(memory + at) != (round * LEN + at) * 7 + 1;
        CHECK(nr_others == 0, "round %d: %ld words", round, nr_others);
    }
    is_over = 1;
    pthread_join(thread, NULL);
    close(file);
    umount2(folder, MNT_DETACH);
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    rmdir(folder);
    DONE;
}
