// RUN: gcc -O2 -o x mremap-pages.c && ./x    EXPECT: exit 0
// BUDGETS: 16M 96M 160M
#define _GNU_SOURCE
#include <sys/mman.h>
#include <stdio.h>
#include <string.h>
#include <stdint.h>
#include <errno.h>
int main(void){ size_t P=4096,n=4096; char*p=mmap(0,n*P,PROT_READ|PROT_WRITE,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);
 char*u=mmap(0,P,PROT_READ|PROT_WRITE,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);
 for(size_t i=0;i<n;i++) *(uint64_t*)(p+i*P)=i;
 for(size_t i=0;i+1<n;i++){ /* swap page i and i+1 by way of u */
  char*a=p+i*P,*b=a+P;
  if(mremap(a,P,P,MREMAP_MAYMOVE|MREMAP_FIXED,u)==MAP_FAILED){printf("1: page %zu errno %d %s\n",i,errno,strerror(errno));return 1;}
  if(mremap(b,P,P,MREMAP_MAYMOVE|MREMAP_FIXED,a)==MAP_FAILED){printf("2: page %zu errno %d %s\n",i,errno,strerror(errno));return 1;}
  if(mremap(u,P,P,MREMAP_MAYMOVE|MREMAP_FIXED,b)==MAP_FAILED){printf("3: page %zu errno %d %s\n",i,errno,strerror(errno));return 1;} }
 size_t bad=0; for(size_t i=0;i+1<n;i++) if(*(uint64_t*)(p+i*P)!=i+1){ if(bad<2||bad>508) printf("page %zu of %zu holds %lu, should %zu (addr %p)\n",i,n,*(uint64_t*)(p+i*P),i+1,(void*)(p+i*P)); bad++; } printf("wrong pages %zu\n",bad); return bad!=0; }
