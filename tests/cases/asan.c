// EXPECT: exit 0, last line "ok c286cd2f3d7f1e95"
// CFLAGS: -O1 -fsanitize=address
// A program that is built with a sanitizer, whose library must be loaded before all others.
#include <stdio.h>
#include <stdlib.h>
#include <stdint.h>
#include <string.h>
typedef uint64_t u64;
static u64 mix(u64 x){x+=0x9e3779b97f4a7c15ull;x=(x^(x>>30))*0xbf58476d1ce4e5b9ull;x=(x^(x>>27))*0x94d049bb133111ebull;return x^(x>>31);}
struct node{struct node*next;u64 key;unsigned char body[200];};
int main(int c,char**v){
  (void)v;
  struct node*head=0;u64 n=1100000;
  for(u64 i=0;i<n;i++){struct node*x=malloc(sizeof*x);if(!x){printf("FAIL malloc\n");return 1;}x->next=head;x->key=mix(i);memset(x->body,(int)(i&255),sizeof x->body);head=x;}
  u64 i=n,h=1;
  for(struct node*x=head;x;x=x->next){i--;if(x->key!=mix(i)||x->body[0]!=(i&255)||x->body[199]!=(i&255)){printf("FAIL node %llu\n",(unsigned long long)i);return 1;}h=h*31+x->key;}
  if(i){printf("FAIL count\n");return 1;}
  if(c>1){volatile unsigned char z=head->body[sizeof head->body+8*(c-1)];(void)z;printf("FAIL overflow not reported\n");return 0;}
  while(head){struct node*x=head->next;free(head);head=x;}
  printf("ok %016llx\n",(unsigned long long)h);return 0;
}
