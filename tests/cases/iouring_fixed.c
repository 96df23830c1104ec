// EXPECT: exit 0, last line "ok 7d368593fc5b8033"
// BUDGETS: 96M
// LIMIT_S: 300
// NEEDS: move
// io_uring by raw system calls reads and writes memory that is cold, and, if 64 MiB may be registered, fixed
// buffers. Each completion has the full count.
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
#include <sys/syscall.h>
#include <linux/io_uring.h>
typedef uint64_t u64;
static u64 mix(u64 x){x+=0x9e3779b97f4a7c15ull;x=(x^(x>>30))*0xbf58476d1ce4e5b9ull;x=(x^(x>>27))*0x94d049bb133111ebull;return x^(x>>31);}
#define DIE(m) do{printf("FAIL %s: %s\n",m,strerror(errno));exit(1);}while(0)
#define QD 16
static int ring;static unsigned *sqh,*sqt,*sqm,*sqa,*cqh,*cqt,*cqm;static struct io_uring_sqe*sqe;static struct io_uring_cqe*cqe;
static void setup(void){
  struct io_uring_params p;memset(&p,0,sizeof p);ring=syscall(SYS_io_uring_setup,QD,&p);if(ring<0)DIE("io_uring_setup");
  size_t sl=p.sq_off.array+p.sq_entries*4,cl=p.cq_off.cqes+p.cq_entries*sizeof*cqe;
  char*s=mmap(0,sl,3,MAP_SHARED|MAP_POPULATE,ring,IORING_OFF_SQ_RING),*q=mmap(0,cl,3,MAP_SHARED|MAP_POPULATE,ring,IORING_OFF_CQ_RING);
  sqe=mmap(0,p.sq_entries*sizeof*sqe,3,MAP_SHARED|MAP_POPULATE,ring,IORING_OFF_SQES);
  if(s==MAP_FAILED||q==MAP_FAILED||sqe==MAP_FAILED)DIE("mmap ring");
  sqh=(unsigned*)(s+p.sq_off.head);sqt=(unsigned*)(s+p.sq_off.tail);sqm=(unsigned*)(s+p.sq_off.ring_mask);sqa=(unsigned*)(s+p.sq_off.array);
  cqh=(unsigned*)(q+p.cq_off.head);cqt=(unsigned*)(q+p.cq_off.tail);cqm=(unsigned*)(q+p.cq_off.ring_mask);cqe=(void*)(q+p.cq_off.cqes);
}
static void put(int op,int fd,void*a,unsigned len,u64 off,int idx,u64 tag){unsigned t=*sqt,i=t&*sqm;struct io_uring_sqe*e=&sqe[i];memset(e,0,sizeof*e);
  e->opcode=op;e->fd=fd;e->addr=(u64)a;e->len=len;e->off=off;e->buf_index=idx;e->user_data=tag;sqa[i]=i;__atomic_store_n(sqt,t+1,__ATOMIC_RELEASE);}
static void go(int n,unsigned want,const char*what){
  int k=syscall(SYS_io_uring_enter,ring,n,n,IORING_ENTER_GETEVENTS,0,0);if(k!=n)DIE(what);
  for(int got=0;got<n;){unsigned h=*cqh;if(h==__atomic_load_n(cqt,__ATOMIC_ACQUIRE)){syscall(SYS_io_uring_enter,ring,0,1,IORING_ENTER_GETEVENTS,0,0);continue;}
    struct io_uring_cqe*c=&cqe[h&*cqm];if(c->res!=(int)want){printf("FAIL %s tag %llu res %d (%s)\n",what,(unsigned long long)c->user_data,c->res,c->res<0?strerror(-c->res):"short");exit(1);}
    __atomic_store_n(cqh,h+1,__ATOMIC_RELEASE);got++;}
}
#define CH (128u<<10)
#define NC 3072u                      /* 384 MiB */
static int ok(u64*p,u64 b){for(u64 i=0;i<CH/8;i++)if(p[i]!=mix(b<<20|i))return 0;return 1;}
int main(void){
  setup();char fn[]="/var/tmp/iouXXXXXX";int fd=mkstemp(fn);if(fd<0)DIE("mkstemp");unlink(fn);
  unsigned char*m=mmap(0,(size_t)NC*CH,3,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);if(m==MAP_FAILED)DIE("mmap");
  for(u64 b=0;b<NC;b++)for(u64 i=0;i<CH/8;i++)((u64*)(m+b*CH))[i]=mix(b<<20|i);
  /* write out: source pages are by now cold */
  for(u64 b=0;b<NC;b+=QD){for(int k=0;k<QD;k++)put(IORING_OP_WRITE,fd,m+(b+k)*CH,CH,(b+k)*CH,0,b+k);go(QD,CH,"write");}
  if(madvise(m,(size_t)NC*CH,MADV_DONTNEED))DIE("madvise");
  for(size_t o=0;o<(size_t)NC*CH;o+=1<<20)if(m[o]){printf("FAIL not zero after MADV_DONTNEED\n");return 1;}
  /* read back into never-touched memory, in a scattered order */
  for(u64 j=0;j<NC;j+=QD){for(int k=0;k<QD;k++){u64 b=((j+k)*1237)%NC;put(IORING_OP_READ,fd,m+b*CH,CH,b*CH,0,b);}go(QD,CH,"read");}
  for(u64 b=0;b<NC;b++)if(!ok((u64*)(m+b*CH),b)){printf("FAIL block %llu\n",(unsigned long long)b);return 1;}
  /* fixed buffers: the kernel pins these pages for as long as they are registered */
  int fixed=0;struct iovec v={m,64u<<20};
  if(!syscall(SYS_io_uring_register,ring,IORING_REGISTER_BUFFERS,&v,1)){fixed=1;
    for(u64 j=0;j<512;j+=QD){for(int k=0;k<QD;k++)put(IORING_OP_READ_FIXED,fd,m+(j+k)*CH,CH,(j+k+512)*CH,0,j+k);go(QD,CH,"read_fixed");}
    volatile u64 s=0;for(size_t o=64u<<20;o<(size_t)NC*CH;o+=4096)s+=m[o];      /* pressure */
    for(u64 b=0;b<512;b++)if(!ok((u64*)(m+b*CH),b+512)){printf("FAIL fixed block %llu\n",(unsigned long long)b);return 1;}
    for(u64 b=0;b<512;b++){u64*p=(u64*)(m+b*CH);for(u64 i=0;i<CH/8;i++)p[i]=mix(b<<20|i);}   /* CPU writes to pinned pages */
    for(u64 j=0;j<512;j+=QD){for(int k=0;k<QD;k++)put(IORING_OP_WRITE_FIXED,fd,m+(j+k)*CH,CH,(j+k)*CH,0,j+k);go(QD,CH,"write_fixed");}
    if(syscall(SYS_io_uring_register,ring,IORING_UNREGISTER_BUFFERS,0,0))DIE("unregister");
  } else fprintf(stderr,"note: 64 MiB could not be registered: %s\n",strerror(errno));
  u64 h=1;for(u64 b=0;b<NC;b++){if(!ok((u64*)(m+b*CH),b)){printf("FAIL end block %llu\n",(unsigned long long)b);return 1;}h=h*1099511628211ull^((u64*)(m+b*CH))[b];}
  u64*r=aligned_alloc(4096,CH);for(u64 b=0;b<NC;b++){if(pread(fd,r,CH,b*CH)!=CH)DIE("pread");if(!ok(r,b)){printf("FAIL file block %llu\n",(unsigned long long)b);return 1;}}
  fprintf(stderr,"note: fixed buffers %s\n",fixed?"used":"not used");
  printf("ok %016llx\n",(unsigned long long)h);return 0;
}
