/* EXPECT: exit 0, last line "ok"
 * BUDGETS: 64M
 * The program has an allocator of its own, which is locked from before a fork until its handler has run in the child.
 * The children read memory that is swapped out, write, fork again and exec, and the handler touches such memory too.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES ((size_t)128 << 20)
#define HEAP ((size_t)64 << 20)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char heap[HEAP] __attribute__((aligned(16)));
static size_t used;
static volatile unsigned char *data;
static volatile int sum;

void *memalign(size_t align, size_t size)
{
	pthread_mutex_lock(&lock);
	used = (used + 16 + align - 1) & ~(align - 1);
	char *block = heap + used;
	used += (size + 15) & ~(size_t)15;
	pthread_mutex_unlock(&lock);
	if (used > HEAP)
		return NULL;
	((size_t *)block)[-1] = size;
	return block;
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

static void touch(void)
{
	for (size_t at = 0; data && at < BYTES; at += BYTES / 64)
		sum += data[at];
}

static void before(void) { pthread_mutex_lock(&lock); }
static void after(void) { touch(); pthread_mutex_unlock(&lock); }

__attribute__((constructor)) static void begin(void) { pthread_atfork(before, after, after); }

static int check(void)
{
	for (size_t at = 0; at < BYTES; at += 4096)
		if (data[at] != (unsigned char)(at >> 12))
			return 1;
	return 0;
}

static int wait_for(pid_t child)
{
	int status = -1;

	return child < 0 || waitpid(child, &status, 0) != child || status;
}

static int work(int depth)
{
	pid_t child = fork();

	if (child)
		return wait_for(child);
	if (depth && work(depth - 1))
		_exit(2);
	if (check())
		_exit(3);
	for (size_t at = 0; at < BYTES; at += 4096)
		data[at] = at >> 12;
	_exit(check() || !malloc(100));
}

int main(void)
{
	data = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (size_t at = 0; at < BYTES; at += 4096)
		data[at] = at >> 12;
	for (int i = 0; i < 20; i++) {
		pid_t child = fork();

		if (!child) {
			execl("/bin/true", "true", (char *)0);
			_exit(9);
		}
		if (wait_for(child))
			return printf("exec failed\n"), 1;
	}
	if (work(2) || check())
		return printf("a child failed\n"), 1;
	puts("ok");
	return 0;
}
