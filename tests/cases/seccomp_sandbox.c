// EXPECT: exit 0, last line "ok 19a1100eb4c169d1"
// ARGS: errno
// A program that locks itself into a small list of system calls (a seccomp filter on all threads), then works on its
// data. Everything else kills the process, or with the argument "errno" fails with EPERM. Threads of ours get the same
// filter.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <linux/seccomp.h>
#include <linux/filter.h>
typedef uint64_t u64;
static u64 mix(u64 x){x+=0x9e3779b97f4a7c15ull;x=(x^(x>>30))*0xbf58476d1ce4e5b9ull;x=(x^(x>>27))*0x94d049bb133111ebull;return x^(x>>31);}
#define N (28u<<20)                  /* 224 MiB */
#define ALLOW(n) BPF_JUMP(BPF_JMP|BPF_JEQ|BPF_K,(n),0,1),BPF_STMT(BPF_RET|BPF_K,SECCOMP_RET_ALLOW)
int main(int c,char**v){
  unsigned deny=c>1&&!strcmp(v[1],"errno")?SECCOMP_RET_ERRNO|EPERM:SECCOMP_RET_KILL_PROCESS;
  u64*t=malloc((size_t)N*8);if(!t){printf("FAIL malloc\n");return 1;}
  for(u64 i=0;i<N;i++)t[i]=mix(i);
  setvbuf(stdout,0,_IONBF,0);
  char name[]="/var/tmp/sandboxXXXXXX";int fd=mkstemp(name);
  if(fd<0||unlink(name)||write(fd,t,4096)!=4096||lseek(fd,0,SEEK_SET)){printf("FAIL file\n");return 1;}
  struct sock_filter f[]={BPF_STMT(BPF_LD|BPF_W|BPF_ABS,offsetof(struct seccomp_data,nr)),
    ALLOW(SYS_read),ALLOW(SYS_write),ALLOW(SYS_brk),ALLOW(SYS_mmap),ALLOW(SYS_munmap),ALLOW(SYS_mremap),ALLOW(SYS_exit),ALLOW(SYS_exit_group),
    ALLOW(SYS_rt_sigreturn),ALLOW(SYS_futex),ALLOW(SYS_lseek),ALLOW(SYS_newfstatat),ALLOW(SYS_fstat),
    BPF_STMT(BPF_RET|BPF_K,deny)};
  struct sock_fprog p={sizeof f/sizeof*f,f};
  if(prctl(PR_SET_NO_NEW_PRIVS,1,0,0,0)){printf("FAIL no_new_privs\n");return 1;}
  long r=syscall(SYS_seccomp,SECCOMP_SET_MODE_FILTER,SECCOMP_FILTER_FLAG_TSYNC,&p);
  if(r){printf("FAIL seccomp %ld %s\n",r,strerror(errno));return 1;}
  /* from here on only the calls listed above */
  u64 h=1,x=9;
  for(int pass=0;pass<2;pass++){
    for(u64 i=0;i<N;i++){u64 want=mix(i)+pass;if(t[i]!=want){printf("FAIL at %llu pass %d\n",(unsigned long long)i,pass);return 1;}t[i]=want+1;h=h*31+want;}
  }
  u64*big=malloc(96u<<20);if(!big){printf("FAIL second malloc\n");return 1;}
  if(read(fd,big,4096)!=4096){printf("FAIL read\n");return 1;} /* into memory that may leave RAM */
  for(u64 i=0;i<512;i++)if(big[i]!=mix(i)){printf("FAIL word %llu of the file\n",(unsigned long long)i);return 1;}
  for(u64 i=0;i<1u<<14;i++)big[i]=t[(x=mix(x))%N];
  for(u64 i=0;i<1u<<14;i++)h^=big[i]*(i|1);
  printf("ok %016llx\n",(unsigned long long)h);
  return 0;
}
