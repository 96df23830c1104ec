/* EXPECT: exit 0, last line "ok"
 * BUDGETS: 96M
 * A signal handler forks although it may have interrupted malloc in the same thread, as crash handlers do.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int nr_forks, failed;
static const struct itimerval soon = {{0, 0}, {0, 3000}};

static void handler(int signal)
{
	int status = -1;
	pid_t child = fork();

	(void)signal;
	if (!child)
		_exit(0);
	failed |= child < 0 || waitpid(child, &status, 0) != child || status;
	nr_forks++;
	setitimer(ITIMER_REAL, &soon, 0); /* after this, so that main goes on where a fork takes longer */
}

int main(void)
{
	static void *blocks[64];

	signal(SIGALRM, handler);
	setitimer(ITIMER_REAL, &soon, 0);
	for (unsigned i = 0; nr_forks < 200; i++) {
		free(blocks[i % 64]);
		blocks[i % 64] = malloc(100 + i % 1000);
	}
	puts(failed ? "failed" : "ok");
	return failed;
}
