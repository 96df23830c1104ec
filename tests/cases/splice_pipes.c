// EXPECT: exit 0, last line "ok 723ef079fb6e03f2"
// BUDGETS: 64M 96M
// vmsplice puts memory into a pipe that a child splices into a file. Then writev and readv with 1,024 pieces, and
// sendfile, all with memory that is cold.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>
#include <errno.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/sendfile.h>
typedef uint64_t u64;
static u64 mix(u64 x){x+=0x9e3779b97f4a7c15ull;x=(x^(x>>30))*0xbf58476d1ce4e5b9ull;x=(x^(x>>27))*0x94d049bb133111ebull;return x^(x>>31);}
#define DIE(m) do{printf("FAIL %s: %s\n",m,strerror(errno));exit(1);}while(0)
#define SZ (192ull<<20)
static int tmp(void){char fn[]="/var/tmp/splXXXXXX";int f=mkstemp(fn);if(f<0)DIE("mkstemp");unlink(fn);return f;}
static void same(int f,const char*w){static u64 b[131072];u64 o=0;if(lseek(f,0,SEEK_SET))DIE("seek");for(;;){ssize_t k=read(f,b,sizeof b);if(k<0)DIE("read");if(!k)break;for(ssize_t i=0;i<k/8;i++)if(b[i]!=mix(o/8+i)){printf("FAIL %s: file differs at %llu\n",w,(unsigned long long)(o+i*8));exit(1);}o+=k;}if(o!=SZ){printf("FAIL %s: %llu bytes\n",w,(unsigned long long)o);exit(1);}}
int main(void){
  unsigned char*m=mmap(0,SZ,3,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);if(m==MAP_FAILED)DIE("mmap");
  int f1=tmp(),f2=tmp(),f3=tmp(),p[2];
  if(pipe(p))DIE("pipe");
  fcntl(p[1],F_SETPIPE_SZ,1<<20);
  pid_t c=fork();if(c<0)DIE("fork");
  if(!c){close(p[1]);for(;;){ssize_t k=splice(p[0],0,f1,0,1<<20,SPLICE_F_MOVE);if(k<0)_exit(5);if(!k)_exit(0);}}
  close(p[0]);
  for(u64 i=0;i<SZ/8;i++)((u64*)m)[i]=mix(i);
  u64 o=0;while(o<SZ){struct iovec v={m+o,SZ-o<(777<<12)?SZ-o:(777<<12)};ssize_t k=vmsplice(p[1],&v,1,0);if(k<=0)DIE("vmsplice");
    /* while those pages sit in the pipe, walk far away */ volatile u64 s=0;for(u64 q=(o*7)%SZ,j=0;j<16;j++,q=(q+(SZ/17))%SZ)s+=m[q];o+=k;}
  close(p[1]);int st;waitpid(c,&st,0);if(st){printf("FAIL child splice status %x\n",st);return 1;}
  same(f1,"vmsplice");
  /* gather write from scattered places, in file order */
  static struct iovec v[1024];
  for(u64 a=0;a<SZ;){int n=0;u64 tot=0;for(;n<1024&&a+tot<SZ;n++){u64 len=512+((a+tot)/512%7)*512;if(a+tot+len>SZ)len=SZ-a-tot;v[n].iov_base=m+a+tot;v[n].iov_len=len;tot+=len;}
    ssize_t k=writev(f2,v,n);if(k!=(ssize_t)tot)DIE("writev");a+=tot;}
  same(f2,"writev");
  /* drop the memory, scatter-read it back into never-touched pages */
  if(madvise(m,SZ,MADV_DONTNEED))DIE("madvise");lseek(f2,0,SEEK_SET);
  for(u64 a=0;a<SZ;){int n=0;u64 tot=0;for(;n<1024&&a+tot<SZ;n++){u64 len=4096*(1+n%3);if(a+tot+len>SZ)len=SZ-a-tot;v[n].iov_base=m+a+tot;v[n].iov_len=len;tot+=len;}
    ssize_t k=readv(f2,v,n);if(k!=(ssize_t)tot)DIE("readv");a+=tot;}
  for(u64 i=0;i<SZ/8;i++)if(((u64*)m)[i]!=mix(i)){printf("FAIL readv at %llu\n",(unsigned long long)i*8);return 1;}
  off_t z=0;while((u64)z<SZ){ssize_t k=sendfile(f3,f2,&z,8<<20);if(k<=0)DIE("sendfile");}
  same(f3,"sendfile");
  u64 h=1;for(u64 i=0;i<SZ/8;i++)h=h*31+((u64*)m)[i];
  printf("ok %016llx\n",(unsigned long long)h);return 0;
}
