/* EXPECT: exit 0, last line "ok"
 * BUDGETS: 96M
 * A program that reads all that /proc/self/maps calls readable, as a collector of garbage does, also in a forked child,
 * which writes what it has read. Neither ends it, and its own content is what it was.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES ((size_t)160 << 20)

static volatile unsigned char sum;

static void read_all(int writes)
{
	static uintptr_t start[4000], end[4000];
	static char access[4000][8];
	char line[512], name[256];
	int nr = 0;
	FILE *maps = fopen("/proc/self/maps", "r");

	while (fgets(line, sizeof(line), maps) && nr < 4000) {
		name[0] = 0;
		sscanf(line, "%lx-%lx %7s %*s %*s %*s %255s", &start[nr], &end[nr], access[nr], name);
		nr += access[nr][0] == 'r' && strncmp(name, "[v", 2);
	}
	fclose(maps);
	for (int i = 0; i < nr; i++)
		for (uintptr_t at = start[i]; at < end[i]; at += 4096) {
			volatile unsigned char *byte = (void *)at;

			sum += *byte;
			if (writes && access[i][1] == 'w' && access[i][3] == 'p')
				*byte = *byte;
		}
}

static int check(unsigned char *p)
{
	for (size_t at = 0; at < BYTES; at += 4096)
		if (p[at] != (unsigned char)(at >> 12))
			return printf("wrong at %zx\n", at), 1;
	return 0;
}

int main(void)
{
	int status;
	unsigned char *p = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	read_all(0);
	for (size_t at = 0; at < BYTES; at += 4096)
		p[at] = at >> 12;
	if (check(p))
		return 1;
	pid_t child = fork();
	if (!child) {
		read_all(1);
		_exit(check(p));
	}
	if (waitpid(child, &status, 0) != child || status)
		return printf("the child ended with %x\n", status), 1;
	if (check(p))
		return 1;
	puts("ok");
	return 0;
}
