// RUN: gcc -O2 -o x mremap-fixed.c && ./x    EXPECT: exit 0
// BUDGETS: 16M 96M 160M
#define _GNU_SOURCE
#include <sys/mman.h>
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
#include <errno.h>
#include <stdint.h>
/* MREMAP_FIXED to an address that lies free between mappings: the target may fall inside the engine's own reservation. */
int main(void){
  size_t n=24u<<20; int bad=0, err=0;
  srand(1);
  char *p=mmap(0,n,PROT_READ|PROT_WRITE,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);
  for(size_t i=0;i<n/8;i++)((uint64_t*)p)[i]=i*2654435761u;
  for(int r=0;r<300;r++){
    size_t page=4096;
    char *t=mmap(0,n+page,PROT_NONE,MAP_PRIVATE|MAP_ANONYMOUS|MAP_NORESERVE,-1,0);
    munmap(t,n+page);
    if(t<p+n && p<t+n) continue;
    char *q=mremap(p,n,n,MREMAP_MAYMOVE|MREMAP_FIXED,t);
    if(q==MAP_FAILED){err++; printf("round %d: errno %d (%s)\n",r,errno,strerror(errno)); return 1;}
    p=q;
    unsigned char v[6144]; if(mincore(p,n,v)){ printf("round %d: a hole in the moved mapping: %s\n",r,strerror(errno)); return 2; }
  }
  for(size_t i=0;i<n/8;i++) if(((uint64_t*)p)[i]!=i*2654435761u) bad++;
  printf("wrong words %d\n",bad); return bad!=0;
}
