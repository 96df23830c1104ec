// EXPECT: exit 0, last line "ok f26a318779391a95"
// LIMIT_S: 150
// A forked tracer reads 256 MiB of the program while they are cold: by process_vm_readv (48 MiB of them at once), pread
// of /proc/PID/mem and PTRACE_PEEKDATA, and writes a word each way; the program reads its own /proc/self/mem. Every
// read is complete and right.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/ptrace.h>
#include <sys/prctl.h>
typedef uint64_t u64;
static u64 mix(u64 x){x+=0x9e3779b97f4a7c15ull;x=(x^(x>>30))*0xbf58476d1ce4e5b9ull;x=(x^(x>>27))*0x94d049bb133111ebull;return x^(x>>31);}
#define N (32u<<20)
static u64*t;
static int good(const u64*b,u64 i,u64 n){for(u64 k=0;k<n;k++)if(b[k]!=mix(i+k))return 0;return 1;}
int main(void){
  t=mmap(0,(size_t)N*8,3,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);if(t==MAP_FAILED){printf("FAIL mmap\n");return 1;}
  for(u64 i=0;i<N;i++)t[i]=mix(i);
  /* 1. own memory through /proc/self/mem */
  int fd=open("/proc/self/mem",O_RDWR);if(fd<0){printf("FAIL open mem %s\n",strerror(errno));return 1;}
  static u64 b[16384];
  for(u64 i=0;i<N;i+=16384*4){ssize_t n=pread(fd,b,sizeof b,(off_t)(uintptr_t)(t+i));if(n!=sizeof b||!good(b,i,16384)){printf("FAIL /proc/self/mem at %llu: %zd %s\n",(unsigned long long)i,n,n<0?strerror(errno):"");return 1;}}
  close(fd);
  prctl(PR_SET_PTRACER,PR_SET_PTRACER_ANY,0,0,0);
  int up[2],down[2];if(pipe(up)||pipe(down)){printf("FAIL pipe\n");return 1;}
  pid_t me=getpid();fflush(stdout);
  pid_t c=fork();if(c<0){printf("FAIL fork\n");return 1;}
  if(!c){                             /* the reader; it never touches its own copy of t */
    char x;const char*bad=0;int e=0;
    /* 2. process_vm_readv */
    for(u64 i=8192;i<N&&!bad;i+=16384*8){struct iovec l={b,sizeof b},r={t+i,sizeof b};ssize_t n=process_vm_readv(me,&l,1,&r,1,0);if(n!=sizeof b||!good(b,i,16384)){bad="process_vm_readv";e=n<0?errno:0;}}
    /* many bytes in one call, whose buffers and ranges end at different places */
    u64*much=mmap(0,48<<20,3,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);u64 words=(48u<<20)/8,edge=1000001;
    struct iovec to[2]={{much,5<<20},{(char*)much+(5<<20),43<<20}},from[2]={{t+1000,edge*8},{t+N/2,(words-edge)*8}};
    ssize_t got=bad?0:process_vm_readv(me,to,2,from,2,0);
    if(!bad&&(got!=48<<20||!good(much,1000,edge)||!good(much+edge,N/2,words-edge))){bad="process_vm_readv of 48 MiB";e=got<0?errno:0;}
    munmap(much,48<<20);
    u64 v=0x1111;struct iovec l={&v,8},r={t+3,8};if(!bad&&process_vm_writev(me,&l,1,&r,1,0)!=8){bad="process_vm_writev";e=errno;}
    /* 3. /proc/PID/mem */
    char p[40];sprintf(p,"/proc/%d/mem",me);int f=open(p,O_RDWR);if(f<0&&!bad){bad="open /proc/PID/mem";e=errno;}
    for(u64 i=50000;i<N-16384&&!bad;i+=16384*8){ssize_t n=pread(f,b,sizeof b,(off_t)(uintptr_t)(t+i));if(n!=sizeof b||!good(b,i,16384)){bad="/proc/PID/mem";e=n<0?errno:0;}}
    v=0x2222;if(!bad&&pwrite(f,&v,8,(off_t)(uintptr_t)(t+N/2))!=8){bad="write to /proc/PID/mem";e=errno;}
    /* 4. ptrace: attaching stops the main thread only (other threads keep serving) */
    if(!bad){if(ptrace(PTRACE_SEIZE,me,0,0)||ptrace(PTRACE_INTERRUPT,me,0,0)){bad="ptrace seize";e=errno;}
      else{int st;waitpid(me,&st,__WALL);
        for(u64 i=777;i<N&&!bad;i+=N/512){errno=0;long w=ptrace(PTRACE_PEEKDATA,me,t+i,0);if(errno||(u64)w!=mix(i)){bad="PTRACE_PEEKDATA";e=errno;}}
        if(!bad&&ptrace(PTRACE_POKEDATA,me,t+N-5,0x3333)){bad="PTRACE_POKEDATA";e=errno;}
        ptrace(PTRACE_DETACH,me,0,0);}}
    if(bad){fprintf(stderr,"reader: %s: %s\n",bad,e?strerror(e):"wrong or short");x='B';}else x='G';
    if(write(up[1],&x,1)!=1)_exit(8);
    _exit(x=='G'?0:7);
  }
  char x=0;ssize_t n;do n=read(up[0],&x,1);while(n<0&&errno==EINTR);
  int st;while(waitpid(c,&st,0)<0&&errno==EINTR);
  if(x!='G'||st){printf("FAIL the reader saw wrong memory (see stderr)\n");return 1;}
  if(t[3]!=0x1111||t[N/2]!=0x2222||t[N-5]!=0x3333){printf("FAIL remote writes: %llx %llx %llx\n",(unsigned long long)t[3],(unsigned long long)t[N/2],(unsigned long long)t[N-5]);return 1;}
  t[3]=mix(3);t[N/2]=mix(N/2);t[N-5]=mix(N-5);
  u64 h=1;for(u64 i=0;i<N;i++){if(t[i]!=mix(i)){printf("FAIL content %llu\n",(unsigned long long)i);return 1;}h=h*31+t[i];}
  printf("ok %016llx\n",(unsigned long long)h);return 0;
}
