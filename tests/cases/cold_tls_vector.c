/* EXPECT: exit 0, last line "ok"
 * BUDGETS: 24M
 * The program has an allocator of its own, which never gives two blocks the same page. The C library takes the vectors
 * of thread-local storage of all threads from there. They leave RAM while the threads wait, and then the threads touch
 * memory that has left RAM too.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HEAP ((size_t)256 << 20)
#define BYTES ((size_t)64 << 20)
#define PAGE ((size_t)4096)
#define THREADS 6

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *heap;
static size_t used;

void *memalign(size_t align, size_t size)
{
	pthread_mutex_lock(&lock);
	if (!heap)
		heap = mmap(NULL, HEAP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *block = heap + used + (align > 64 ? align : 64);
	used = (block + size - heap + 2 * PAGE - 1) & ~(PAGE - 1);
	((size_t *)block)[-1] = size;
	pthread_mutex_unlock(&lock);
	return used > HEAP ? NULL : block;
}

void *malloc(size_t size) { return memalign(16, size); }
void *calloc(size_t nr, size_t size) { return memalign(16, nr * size); }
void free(void *block) { (void)block; }
void *realloc(void *block, size_t size)
{
	char *new = memalign(16, size);

	if (block && new)
		memcpy(new, block, ((size_t *)block)[-1] < size ? ((size_t *)block)[-1] : size);
	return new;
}

static volatile unsigned char *data;
static volatile int may_go;

static void *touch(void *part)
{
	uintptr_t wrong = 0;

	while (!may_go)
		usleep(1000);
	for (int round = 0; round < 3; round++)
		for (size_t at = (uintptr_t)part * PAGE; at < BYTES; at += THREADS * PAGE)
			wrong += data[at] != (unsigned char)(at / PAGE);
	return (void *)wrong;
}

int main(void)
{
	pthread_t threads[THREADS];
	void *wrong;

	data = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (uintptr_t at = 0; at < THREADS; at++)
		pthread_create(&threads[at], NULL, touch, (void *)at);
	for (int round = 0; round < 3; round++)
		for (size_t at = 0; at < BYTES; at += PAGE)
			data[at] = at / PAGE;
	may_go = 1;
	for (int at = 0; at < THREADS; at++)
		if (pthread_join(threads[at], &wrong) || wrong) {
			puts("FAIL: wrong bytes");
			return 1;
		}
	puts("ok");
	return 0;
}
