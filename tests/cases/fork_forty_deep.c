/* EXPECT: exit 0, last line "ok"
 * BUDGETS: 64M
 * Each child forks the next one, forty deep. The last one needs swap.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES ((size_t)128 << 20)

static int go(int depth)
{
	int status = -1;

	if (!depth) {
		char *p = malloc(BYTES);

		memset(p, 1, BYTES);
		for (size_t at = 0; at < BYTES; at += 4096)
			if (p[at] != 1)
				return 1;
		return 0;
	}
	pid_t child = fork();
	if (!child)
		_exit(go(depth - 1));
	return child < 0 || waitpid(child, &status, 0) != child || status;
}

int main(void)
{
	if (go(40))
		return printf("a child failed\n"), 1;
	puts("ok");
	return 0;
}
