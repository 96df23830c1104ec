// NEEDS: root
// After chroot no descriptor of ours leads out of the new root, also in a forked child, and although a child of vfork
// has left its own root before.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static int escapes(void) {
  for (int fd = 3; fd < 40000; fd++)
    for (int up = 0; up < 4; up++) {
      char path[64] = ""; for (int i = 0; i < up; i++) strcat(path, "../");
      if (syscall(SYS_openat, fd, strcat(path, "etc/passwd"), O_RDONLY) >= 0) { printf("descriptor %d leads out\n", fd); return 1; }
    }
  return 0;
}
int main(void) {
  size_t n = 200 << 20; char *p = malloc(n); memset(p, 7, n);
  pid_t v = vfork();
  if (!v) _exit(chroot("/"));
  int left; if (waitpid(v, &left, 0) < 0 || left) return 5;
  char d[] = "/var/tmp/jailXXXXXX";
  if (!mkdtemp(d) || chdir(d) || rmdir(d) || chroot(".")) return 2;
  if (escapes()) return 1;
  int s; pid_t c = fork();
  if (!c) { for (size_t i = 0; i < n; i += n / 16) if (p[i] != 7) _exit(3); _exit(escapes()); }
  if (waitpid(c, &s, 0) < 0 || s) { printf("child %#x\n", s); return 1; }
  for (size_t i = 0; i < n; i += 4096) if (p[i] != 7) return 4;
  return 0;
}
