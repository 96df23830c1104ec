// EXPECT: exit 0, last line "ok"
// The kernel's strict mode permits read, write, exit and the return from a signal handler. A thread in it uses memory
// all the same.
#define _GNU_SOURCE
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#define N (200u << 20)
static unsigned char *p;
static volatile int sum_ok;
static void *in_strict_mode(void *x) {
  (void)x;
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0)) { puts("FAIL prctl"); exit(1); }
  int ok = 1;
  for (unsigned i = 0; i < N; i += 4096) { if (p[i] != (unsigned char)(i >> 12)) ok = 0; p[i]++; }
  sum_ok = ok;
  syscall(SYS_exit, 0);
  return 0;
}
int main(void) {
  p = malloc(N);
  for (unsigned i = 0; i < N; i += 4096) p[i] = i >> 12;
  pthread_t t; if (pthread_create(&t, 0, in_strict_mode, 0)) return 2;
  for (int i = 0; i < 1000 && !sum_ok; i++) usleep(100000);
  for (unsigned i = 0; i < N; i += 4096) if (p[i] != (unsigned char)((i >> 12) + 1)) { puts("FAIL content"); return 1; }
  puts(sum_ok ? "ok" : "FAIL"); return !sum_ok;
}
