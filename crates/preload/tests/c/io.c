/* System calls directly into and out of memory that is not in RAM. */
#include "check.h"
#include <dirent.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/random.h>

static char *region;
static size_t len = 48 * MIB;

static int temporary(int flags) {
    const char *folder = getenv("TEST_FOLDER");
    int fd = open(folder ? folder : "/var/tmp", O_TMPFILE | O_RDWR | flags, 0600);
    CHECK(fd >= 0);
    return fd;
}

static void whole(int fd) {
    fill(region, len, 11);
    send_out(region, len);
    size_t done = 0;
    while (done < len) {
        ssize_t n = pwrite(fd, region + done, len - done, done);
        CHECK(n > 0);
        done += n;
    }
    CHECK(madvise(region, len, MADV_DONTNEED) == 0);
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    for (done = 0; done < len;) {
        ssize_t n = read(fd, region + done, len - done);
        CHECK(n > 0);
        done += n;
    }
    CHECK(holds(region, len, 11));
    CHECK(read(fd, region, 10) == 0);
    send_out(region, len);
    CHECK(pread(fd, region + FOLIO - 4096, 8192, MIB) == 8192);
    for (size_t i = 0; i < 1024; i++)
        CHECK(((uint64_t *)(region + FOLIO - 4096))[i] == word_at(11, MIB / 8 + i));
}

static void vectors(int fd) {
    send_out(region, len);
    struct iovec list[3] = {{region + 5 * FOLIO, 8192}, {region, 4096}, {region + 7 * FOLIO - 4096, 300000}};
    CHECK(preadv(fd, list, 3, 0) == 8192 + 4096 + 300000);
    uint64_t expected = 0;
    for (int part = 0; part < 3; part++)
        for (size_t i = 0; i < list[part].iov_len / 8; i++)
            CHECK(((uint64_t *)list[part].iov_base)[i] == word_at(11, expected++));
    send_out(region, len);
    CHECK(pwritev(fd, list, 3, MIB) == 8192 + 4096 + 300000);
    CHECK(pread(fd, region, 312288, MIB) == 312288 && holds(region, 312288, 11));
}

static void *feed(void *argument) {
    int fd = *(int *)argument;
    for (size_t i = 0; i < 4 * MIB / 8; i += 4096) {
        uint64_t words[4096];
        for (size_t j = 0; j < 4096; j++)
            words[j] = word_at(13, i + j);
        size_t done = 0;
        while (done < sizeof words) {
            ssize_t n = write(fd, (char *)words + done, sizeof words - done);
            CHECK(n > 0);
            done += n;
        }
    }
    return NULL;
}

static void streams(void) {
    for (int kind = 0; kind < 2; kind++) {
        int ends[2];
        CHECK((kind ? pipe(ends) : socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) == 0);
        send_out(region, len);
        pthread_t feeder;
        CHECK(pthread_create(&feeder, NULL, feed, &ends[1]) == 0);
        size_t done = 0;
        while (done < 4 * MIB) {
            ssize_t n = kind ? read(ends[0], region + done, 4 * MIB - done)
                             : recv(ends[0], region + done, 4 * MIB - done, MSG_WAITALL);
            CHECK(n > 0);
            CHECK(kind || n == (ssize_t)(4 * MIB));
            done += n;
        }
        CHECK(holds(region, 4 * MIB, 13));
        CHECK(pthread_join(feeder, NULL) == 0);
        close(ends[0]);
        close(ends[1]);
    }
}

static void datagrams(void) {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    for (int round = 0; round < 20; round++) {
        fill(region, 60000, round);
        send_out(region, 4 * FOLIO);
        CHECK(send(ends[1], region, 60000, 0) == 60000);
        struct iovec list[2] = {{region + FOLIO, 30000}, {region + 2 * FOLIO, 30000}};
        struct msghdr *message = (void *)(region + 3 * FOLIO);
        send_out(region, 4 * FOLIO);
        *message = (struct msghdr){.msg_iov = list, .msg_iovlen = 2};
        CHECK(recvmsg(ends[0], message, 0) == 60000);
        CHECK(holds(region + FOLIO, 30000, round) && holds(region + 2 * FOLIO, 30000, round + 30000 / 8));
    }
    /* A message longer than a megabyte arrives whole, if the socket may have a buffer that large. */
    /* A message longer than 1 MiB arrives whole, by either call. One that is too long is refused, and none is sent. */
    int room = 64 * MIB;
    size_t size = 3 * MIB;
    if (setsockopt(ends[1], SOL_SOCKET, SO_SNDBUFFORCE, &room, sizeof room) != 0) {
        printf("SKIP long messages: CAP_NET_ADMIN is needed\n");
    } else {
        struct iovec out[2] = {{region, MIB / 2}, {region + MIB / 2, size - MIB / 2}};
        struct iovec in[2] = {{region + 2 * FOLIO, MIB}, {region + 2 * FOLIO + MIB, size - MIB}};
        struct msghdr to = {.msg_iov = out, .msg_iovlen = 2}, from = {.msg_iov = in, .msg_iovlen = 2};
        for (int how = 0; how < 2; how++) {
            fill(region, size, 40 + how);
            memset(region + 2 * FOLIO, 0, size);
            send_out(region, 4 * FOLIO);
            ssize_t sent = how ? writev(ends[1], out, 2) : sendmsg(ends[1], &to, 0);
            if (sent < 0) {
                CHECK(errno == ENOBUFS); /* the kernel has no such piece of memory now */
                printf("SKIP a message of 3 MiB: no buffer space\n");
                continue;
            }
            CHECK(sent == (ssize_t)size);
            CHECK((how ? readv(ends[0], in, 2) : recvmsg(ends[0], &from, 0)) == (ssize_t)size);
            CHECK(holds(region + 2 * FOLIO, size, 40 + how));
        }
        struct iovec all = {region, len};
        struct mmsghdr two[2] = {{.msg_hdr = {.msg_iov = out, .msg_iovlen = 1}},
                                 {.msg_hdr = {.msg_iov = &all, .msg_iovlen = 1}}};
        CHECK(send(ends[1], region, len, 0) == -1 && (errno == EMSGSIZE || errno == ENOBUFS));
        CHECK(writev(ends[1], &all, 1) == -1 && (errno == EMSGSIZE || errno == ENOBUFS));
        CHECK(sendmsg(ends[1], &two[1].msg_hdr, 0) == -1 && (errno == EMSGSIZE || errno == ENOBUFS));
        CHECK(sendmmsg(ends[1], two, 2, 0) == 1 && recv(ends[0], region, FOLIO, 0) == (ssize_t)(MIB / 2));
    }
    close(ends[0]);
    close(ends[1]);
}

/* While one thread waits in poll, another removes an entry from the list. The entry stays removed. */
static void *take_off(void *argument) {
    struct pollfd *list = argument;
    usleep(50000);
    list[0].fd = -1;
    list[0].events = 0;
    return NULL;
}

static void polled(void) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    struct pollfd *list = (void *)(region + FOLIO);
    for (int how = 0; how < 3; how++) {
        list[0] = (struct pollfd){.fd = ends[0], .events = POLLIN};
        list[1] = (struct pollfd){.fd = ends[1], .events = POLLIN, .revents = 1};
        send_out(region, 2 * FOLIO);
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, take_off, list) == 0);
        struct timespec limit = {.tv_nsec = 200000000};
        CHECK((how == 0   ? poll(list, 2, 200)
               : how == 1 ? ppoll(list, 2, &limit, NULL)
                          : (int)syscall(SYS_poll, list, 2, 200)) == 0);
        CHECK(pthread_join(thread, NULL) == 0 && list[0].fd == -1 && list[0].events == 0 && list[1].revents == 0);
    }
    close(ends[0]);
    close(ends[1]);
}

static void structures(void) {
    char *text = region + 2 * FOLIO;
    struct stat *about = (void *)(region + 3 * FOLIO);
    strcpy(text, "/proc/self");
    send_out(region, 6 * FOLIO);
    CHECK(stat(text, about) == 0 && S_ISDIR(about->st_mode));
    send_out(region, 6 * FOLIO);
    CHECK(readlink(text, region, 100) > 0);
    send_out(region, 6 * FOLIO);
    CHECK(getcwd(region + 4 * FOLIO, 4096));
    send_out(region, 6 * FOLIO);
    CHECK(getrandom(region + FOLIO - 10, 20, 0) == 20);
    int ends[2], *own = (int *)(region + FOLIO);
    send_out(region, 6 * FOLIO);
    CHECK(pipe(own) == 0);
    memcpy(ends, own, sizeof ends);
    struct pollfd *list = (void *)(region + 5 * FOLIO);
    list[0] = (struct pollfd){.fd = ends[0], .events = POLLIN};
    list[1] = (struct pollfd){.fd = ends[1], .events = POLLOUT};
    send_out(region, 6 * FOLIO);
    CHECK(poll(list, 2, 0) == 1 && list[1].revents == POLLOUT);
    int epoll = epoll_create1(0);
    struct epoll_event *event = (void *)(region + 6 * FOLIO - 8);
    *event = (struct epoll_event){.events = EPOLLOUT, .data.u64 = 42};
    send_out(region, 6 * FOLIO);
    CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[1], event) == 0);
    event->data.u64 = 0;
    send_out(region, 6 * FOLIO);
    CHECK(epoll_wait(epoll, event, 1, 0) == 1 && event->data.u64 == 42);
    strcpy(text, "/proc/self/fd");
    send_out(region, 6 * FOLIO);
    DIR *folder = opendir(text);
    CHECK(folder);
    int entries = 0;
    while (readdir(folder))
        entries++;
    CHECK(entries > 5 && closedir(folder) == 0);
    /* An address without memory still gives an error. */
    CHECK(write(ends[1], (void *)4096, 10) == -1 && errno == EFAULT);
    CHECK(stat((void *)4096, about) == -1 && errno == EFAULT);
}

static void direct(void) {
    int fd = temporary(O_DIRECT);
    fill(region, len, 17);
    send_out(region, len);
    CHECK(pwrite(fd, region, 20 * MIB, 0) == (ssize_t)(20 * MIB));
    CHECK(madvise(region, len, MADV_DONTNEED) == 0);
    CHECK(pread(fd, region, 20 * MIB, 0) == (ssize_t)(20 * MIB));
    CHECK(holds(region, 20 * MIB, 17));
    send_out(region, len);
    CHECK(pread(fd, region + 8192, 65536, 4096) == 65536);
    for (size_t i = 0; i < 8192; i++)
        CHECK(((uint64_t *)(region + 8192))[i] == word_at(17, 512 + i));
    close(fd);
}

int main(void) {
    region = map(len);
    int fd = temporary(0);
    whole(fd);
    vectors(fd);
    close(fd);
    streams();
    datagrams();
    polled();
    structures();
    direct();
    return 0;
}
