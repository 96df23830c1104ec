/* EXPECT: exit 0, last line "ok"
 * BUDGETS: 256M
 * A core dump has the program's memory, and not the engine's, which nobody finds anything in.
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define MIB ((size_t)1 << 20)
#define OURS (320 * MIB)

int main(void)
{
	char *data = mmap(NULL, OURS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), line[512];
	size_t begin = 0, end = 0, at, to, in_ram = 0, dumped = 0;
	int has_ours = 0;

	memset(data, 1, OURS);
	FILE *mappings = fopen("/proc/self/smaps", "r");
	while (mappings && fgets(line, sizeof line, mappings)) {
		if (sscanf(line, "%zx-%zx ", &at, &to) == 2)
			begin = at, end = to;
		sscanf(line, "Anonymous: %zu", &in_ram);
		if (strncmp(line, "VmFlags:", 8))
			continue;
		if (!strstr(line, " dd") && in_ram) {
			dumped += end - begin;
			has_ours |= begin <= (size_t)data && (size_t)data < end;
		}
		in_ram = 0;
	}
	if (!has_ours || dumped > OURS + 128 * MIB) {
		printf("FAIL: %zu MiB are dumped%s\n", dumped / MIB, has_ours ? "" : ", without the program's");
		return 1;
	}
	puts("ok");
	return 0;
}
