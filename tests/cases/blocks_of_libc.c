/* EXPECT: exit 0, last line "ok"
 * BUDGETS: 24M
 * The program has an allocator of its own, which touches no block itself, and gives each 2 MiB of its own. The C
 * library has the kernel fill some of its blocks from there: a stream's buffer, a folder's, the set of a thread's CPUs.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define HEAP ((size_t)2 << 30)
#define APART ((size_t)2 << 20)
#define BYTES ((size_t)64 << 20)
#define PAGE ((size_t)4096)
#define ROUNDS 5

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *heap;
static size_t used;

void *malloc(size_t size)
{
	pthread_mutex_lock(&lock);
	if (!heap) {
		used = 0;
		heap = mmap(NULL, HEAP, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	}
	char *block = heap + used;
	used += (size + APART - 1) & ~(APART - 1);
	pthread_mutex_unlock(&lock);
	return used > HEAP ? NULL : block;
}

void *calloc(size_t nr, size_t size) { return malloc(nr * size); }
void free(void *block) { (void)block; }
void *realloc(void *block, size_t size)
{
	char *new = malloc(size);

	if (block && new) // the blocks behind it are readable, too
		memmove(new, block, size);
	return new;
}

static void sweep(void)
{
	static volatile char *data;

	if (!data)
		data = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int round = 0; round < 3; round++)
		for (size_t at = 0; at < BYTES; at += PAGE)
			data[at] = at / PAGE;
}

static void *attributes(void *unused)
{
	pthread_attr_t found;
	intptr_t error = pthread_getattr_np(pthread_self(), &found);

	(void)unused;
	if (!error)
		pthread_attr_destroy(&found);
	return (void *)error;
}

static const char *failed(FILE *stream, long place)
{
	char some[10];
	pthread_t thread;
	void *error;
	DIR *folder = opendir("/usr/bin");

	sweep();
	if (fseek(stream, place, SEEK_SET) || fread(some, 1, sizeof some, stream) != sizeof some)
		return "fread";
	if (!readdir(folder) || closedir(folder))
		return "readdir";
	if (pthread_create(&thread, NULL, attributes, NULL) || pthread_join(thread, &error) || error)
		return "pthread_getattr_np";
	if (attributes(NULL))
		return "pthread_getattr_np of the first thread";
	return NULL;
}

int main(void)
{
	FILE *stream;

	heap = NULL; // the first one was made before the library has started
	stream = fopen("/bin/sh", "r");
	fgetc(stream);
	for (int round = 0; round < ROUNDS; round++) {
		const char *what = failed(stream, (round + 1) * 2 * PAGE);

		if (what) {
			perror(what);
			return 1;
		}
	}
	fclose(stream);
	puts("ok");
	return 0;
}
