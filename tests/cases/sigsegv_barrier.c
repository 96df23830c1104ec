// EXPECT: exit 0, last line "ok a1fc381523b9a15e writes=12000"
// The program protects its own heap and learns of writes by SIGSEGV. A system call that has to write to a protected
// page fails with EFAULT; the program unprotects the page and tries again. PROT_NONE keeps even the kernel out.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
typedef uint64_t u64;
static u64 mix(u64 x){x+=0x9e3779b97f4a7c15ull;x=(x^(x>>30))*0xbf58476d1ce4e5b9ull;x=(x^(x>>27))*0x94d049bb133111ebull;return x^(x>>31);}
#define SZ (320u<<20)
#define CARD 16384u
static unsigned char*m;static unsigned char dirty[SZ/CARD];static volatile long faults,odd;
static void on(int s,siginfo_t*i,void*u){(void)s;(void)u;unsigned char*a=i->si_addr;
  if(a<m||a>=m+SZ||i->si_code!=SEGV_ACCERR){static const char e[]="FAIL unexpected SIGSEGV address or code\n";if(write(1,e,sizeof e-1)){}_exit(1);}
  u64 c=(a-m)/CARD;if(dirty[c])odd++;dirty[c]=1;faults++;if(mprotect(m+c*CARD,CARD,3))_exit(3);}
#define DIE(x) do{printf("FAIL %s: %s\n",x,strerror(errno));exit(1);}while(0)
int main(void){
  m=mmap(0,SZ,3,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);if(m==MAP_FAILED)DIE("mmap");
  for(u64 o=0;o<SZ;o+=8)*(u64*)(m+o)=mix(o);
  struct sigaction sa={0};sa.sa_sigaction=on;sa.sa_flags=SA_SIGINFO;sigaction(SIGSEGV,&sa,0);
  int p[2];if(pipe(p))DIE("pipe");
  u64 r=2,wr=0;long efault=0;
  for(int gc=0;gc<4;gc++){
    if(mprotect(m,SZ,PROT_READ))DIE("protect");memset(dirty,0,sizeof dirty);faults=0;
    for(int k=0;k<3000;k++){r=mix(r);u64 o=r%(SZ/8)*8;*(u64*)(m+o)^=r;*(u64*)(m+o)^=r;wr++;}
    long d=0;for(u64 c=0;c<SZ/CARD;c++)d+=dirty[c];
    if(d!=faults||odd){printf("FAIL %ld dirty cards, %ld faults, %ld odd\n",d,faults,odd);return 1;}
    for(int k=0;k<400;k++){            /* read(2) into protected memory */
      r=mix(r);u64 c=r%(SZ/CARD);u64 buf[8];for(int j=0;j<8;j++)buf[j]=mix(c*CARD+4096+j*8);
      if(write(p[1],buf,64)!=64)DIE("write to pipe");
      ssize_t n=read(p[0],m+c*CARD+4096,64);
      if(!dirty[c]){if(n!=-1||errno!=EFAULT){printf("FAIL read into a protected page gave %zd %s\n",n,n<0?strerror(errno):"");return 1;}efault++;
        dirty[c]=1;if(mprotect(m+c*CARD,CARD,3))DIE("unprotect");n=read(p[0],m+c*CARD+4096,64);}
      if(n!=64){printf("FAIL read gave %zd %s\n",n,strerror(errno));return 1;}
    }
  }
  /* PROT_NONE must keep even the kernel out */
  if(mprotect(m+(100u<<20),1<<20,PROT_NONE))DIE("none");
  if(write(p[1],m+(100u<<20)+5000,10)!=-1||errno!=EFAULT){printf("FAIL write from PROT_NONE memory worked\n");return 1;}
  if(mprotect(m,SZ,3))DIE("unprotect all");
  u64 h=1;for(u64 o=0;o<SZ;o+=8){if(*(u64*)(m+o)!=mix(o)){printf("FAIL content at %llx\n",(unsigned long long)o);return 1;}h=h*31+*(u64*)(m+o);}
  printf("ok %016llx writes=%llu\n",(unsigned long long)h,(unsigned long long)wr);fprintf(stderr,"note: %ld EFAULTs\n",efault);return 0;
}
