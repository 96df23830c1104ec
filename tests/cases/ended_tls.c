/* EXPECT: exit 0, last line "ok"
 * BUDGETS: 24M
 * The program has an allocator of its own, which keeps its records elsewhere. Detached threads end, more
 * than the C library keeps stacks of, while these records have left RAM. It frees there with all signals blocked.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HEAP ((size_t)32 << 20)
#define BYTES ((size_t)64 << 20)
#define PAGE ((size_t)4096)
#define THREADS 24

struct record {
	size_t size, is_free;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *heap;
static size_t used;
static int wrong;

static struct record *record_of(void *block)
{
	return (struct record *)(((uintptr_t)block & ~(PAGE - 1)) + HEAP);
}

void *memalign(size_t align, size_t size)
{
	if (align > PAGE)
		return NULL;
	pthread_mutex_lock(&lock);
	if (!heap) {
		used = 0;
		heap = mmap(NULL, 2 * HEAP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	}
	char *block = heap + used;
	used = (block + size - heap + PAGE - 1) & ~(PAGE - 1);
	*record_of(block) = (struct record){size, 0};
	pthread_mutex_unlock(&lock);
	return used > HEAP ? NULL : block;
}

void *malloc(size_t size) { return memalign(16, size); }
void *calloc(size_t nr, size_t size) { return memalign(16, nr * size); }

void free(void *block)
{
	if (!block)
		return;
	pthread_mutex_lock(&lock);
	wrong |= record_of(block)->is_free;
	record_of(block)->is_free = 1;
	pthread_mutex_unlock(&lock);
}

void *realloc(void *block, size_t size)
{
	char *new = malloc(size);

	if (block && new)
		memcpy(new, block, record_of(block)->size < size ? record_of(block)->size : size);
	free(block);
	return new;
}

static pthread_barrier_t all_there;
static volatile int may_end;
static pid_t ids[THREADS];

static void *run(void *id)
{
	*(pid_t *)id = gettid();
	pthread_barrier_wait(&all_there);
	while (!may_end)
		usleep(1000);
	return NULL;
}

int main(void)
{
	volatile char *data = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_attr_t detached;
	pthread_t thread;

	heap = NULL; // the first one was made before the library has started

	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	pthread_barrier_init(&all_there, NULL, THREADS + 1);
	for (int round = 0; round < 3; round++) {
		may_end = 0;
		for (int nr = 0; nr < THREADS; nr++)
			if (pthread_create(&thread, &detached, run, ids + nr))
				return 1;
		pthread_barrier_wait(&all_there);
		for (int sweep = 0; sweep < 3; sweep++)
			for (size_t at = 0; at < BYTES; at += PAGE)
				data[at] = at / PAGE;
		may_end = 1;
		for (int nr = 0; nr < THREADS; nr++)
			while (!tgkill(getpid(), ids[nr], 0))
				usleep(1000);
	}
	puts(wrong ? "FAIL: freed twice" : "ok");
	return wrong;
}
