// EXPECT: exit 0, last line "ok 28899c49e7c992f5"
// ARGS: n
// BUDGETS: 32M 96M
// A program that gives up its rights once it has loaded its data: RLIMIT_FSIZE 1 MiB, with SIGXFSZ as it is by default,
// RLIMIT_NOFILE 16, RLIMIT_NPROC 1, RLIMIT_CORE 0, RLIMIT_MEMLOCK 0, chroot into an empty folder and another user (if
// root). Then it uses its memory. Argument "n": no chroot, and the same user.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <errno.h>
#include <grp.h>
#include <sys/stat.h>
#include <sys/resource.h>
typedef uint64_t u64;
static u64 mix(u64 x){x+=0x9e3779b97f4a7c15ull;x=(x^(x>>30))*0xbf58476d1ce4e5b9ull;x=(x^(x>>27))*0x94d049bb133111ebull;return x^(x>>31);}
#define N (36u<<20) // 288 MiB
static void lim(int r,rlim_t v){struct rlimit l={v,v};if(setrlimit(r,&l)){printf("FAIL setrlimit %d: %s\n",r,strerror(errno));exit(1);}}
int main(int c,char**v){
  (void)v;u64*t=malloc((size_t)N*8);if(!t){printf("FAIL malloc\n");return 1;}
  for(u64 i=0;i<N;i++)t[i]=mix(i);
  char d[]="/var/tmp/emptyXXXXXX";if(!mkdtemp(d)){printf("FAIL mkdtemp\n");return 1;}
  lim(RLIMIT_FSIZE,1<<20);lim(RLIMIT_NOFILE,16);lim(RLIMIT_CORE,0);lim(RLIMIT_MEMLOCK,0);
  if(geteuid()==0&&c<2){
    if(chdir(d)||rmdir(d)||chroot(".")){printf("FAIL chroot: %s\n",strerror(errno));return 1;}
    if(setgroups(0,0)||setgid(65534)||setuid(65534)){printf("FAIL setuid: %s\n",strerror(errno));return 1;}
  }else rmdir(d);
  lim(RLIMIT_NPROC,1);umask(0777);
  u64 h=1;
  for(int p=0;p<2;p++)for(u64 i=0;i<N;i++){if(t[i]!=mix(i)+p){printf("FAIL pass %d at %llu\n",p,(unsigned long long)i);return 1;}t[i]++;h=h*31+t[i];}
  u64*b=malloc(32u<<20);if(!b){printf("FAIL second malloc\n");return 1;}
  for(u64 i=0;i<4u<<20;i++)b[i]=t[i*9];
  for(u64 i=0;i<4u<<20;i++)if(b[i]!=mix(i*9)+2){printf("FAIL second block\n");return 1;}
  printf("ok %016llx\n",(unsigned long long)h);return 0;
}
