// EXPECT: exit 0, last line "ok ac3c4fe7b5c3da70"
// BUDGETS: 96M
// NEEDS: root
// LIMIT_S: 300
// A program uses userfaultfd on a mapping of its own, next to 300 MiB of heap: a thread of it serves 4 KiB pages with
// UFFDIO_COPY. Its registration works, and nobody else fills that mapping.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <linux/userfaultfd.h>
typedef uint64_t u64;
static u64 mix(u64 x){x+=0x9e3779b97f4a7c15ull;x=(x^(x>>30))*0xbf58476d1ce4e5b9ull;x=(x^(x>>27))*0x94d049bb133111ebull;return x^(x>>31);}
#define DIE(m) do{printf("FAIL %s: %s\n",m,strerror(errno));exit(1);}while(0)
#define SZ (64u<<20)
static int uf;static unsigned char*m;static volatile int stop;static volatile u64 served;
static void*server(void*a){(void)a;static u64 pg[512]__attribute__((aligned(4096)));
  for(;;){struct pollfd p={uf,POLLIN,0};int k=poll(&p,1,50);if(k==0&&stop)return 0;if(k<=0)continue;
    struct uffd_msg g;if(read(uf,&g,sizeof g)!=sizeof g)continue;if(g.event!=UFFD_EVENT_PAGEFAULT)continue;
    u64 ad=g.arg.pagefault.address&~4095ull,o=ad-(u64)m;for(int i=0;i<512;i++)pg[i]=mix(o/8+i)^0xF00D;
    struct uffdio_copy c={ad,(u64)pg,4096,0,0};if(ioctl(uf,UFFDIO_COPY,&c)&&errno!=EEXIST){printf("FAIL UFFDIO_COPY: %s\n",strerror(errno));exit(1);}served++;}}
int main(void){
  size_t n=38u<<20;u64*t=malloc(n*8);if(!t)DIE("malloc");for(u64 i=0;i<n;i++)t[i]=mix(i);
  uf=syscall(SYS_userfaultfd,O_CLOEXEC|O_NONBLOCK);if(uf<0)DIE("userfaultfd");
  struct uffdio_api api={UFFD_API,0,0};if(ioctl(uf,UFFDIO_API,&api))DIE("UFFDIO_API");
  m=mmap(0,SZ,3,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);if(m==MAP_FAILED)DIE("mmap");
  struct uffdio_register r={{(u64)m,SZ},UFFDIO_REGISTER_MODE_MISSING,0};if(ioctl(uf,UFFDIO_REGISTER,&r))DIE("UFFDIO_REGISTER on my own mapping");
  pthread_t th;pthread_create(&th,0,server,0);
  u64 h=1,x=6;
  for(int k=0;k<20000;k++){x=mix(x);u64 i=x%(SZ/8);u64 v=((volatile u64*)m)[i];if(v!=(mix(i)^0xF00D)){printf("FAIL my page not filled by me: index %llu = %llx\n",(unsigned long long)i,(unsigned long long)v);return 1;}h=h*31+v;
    u64 j=mix(x)%n;if(t[j]!=mix(j)){printf("FAIL heap %llu\n",(unsigned long long)j);return 1;}}
  for(u64 i=0;i<n;i++)if(t[i]!=mix(i)){printf("FAIL heap %llu\n",(unsigned long long)i);return 1;}
  for(u64 i=0;i<SZ/8;i+=100)if(((volatile u64*)m)[i]!=(mix(i)^0xF00D)){printf("FAIL my pages at the end\n");return 1;}
  struct uffdio_range u={(u64)m,SZ};if(ioctl(uf,UFFDIO_UNREGISTER,&u))DIE("UFFDIO_UNREGISTER");
  stop=1;pthread_join(th,0);close(uf);free(t);munmap(m,SZ);
  fprintf(stderr,"note: %llu pages served\n",(unsigned long long)served);
  if(served!=SZ/4096){printf("FAIL served %llu of %u\n",(unsigned long long)served,SZ/4096);return 1;}
  printf("ok %016llx\n",(unsigned long long)h);return 0;
}
