/*
 * repeat SECONDS COMMAND [ARGUMENT...]: runs the command again and again, one process after the other, until the time is over.
 * Prints how many microseconds each process took from its start to its end, one number per line. The command's own output is
 * discarded. Ends with 1 as soon as the command fails.
 */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static double now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static void fail(const char *what, int number)
{
	fprintf(stderr, "repeat: %s: %s\n", what, strerror(number));
	exit(1);
}

static void run(char **argv, posix_spawn_file_actions_t *actions)
{
	pid_t pid;
	int status, error = posix_spawnp(&pid, argv[0], actions, NULL, argv, environ);

	if (error)
		fail(argv[0], error);
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			fail("waitpid", errno);
	if (status) {
		fprintf(stderr, "repeat: %s ended with status %#x\n", argv[0], status);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	posix_spawn_file_actions_t actions;
	double begin, end;

	if (argc < 3) {
		fprintf(stderr, "usage: repeat SECONDS COMMAND [ARGUMENT...]\n");
		return 2;
	}
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
	begin = now_us();
	end = begin + atof(argv[1]) * 1e6;
	while (begin < end) {
		double after;

		run(argv + 2, &actions);
		after = now_us();
		printf("%.1f\n", after - begin);
		begin = after;
	}
	return 0;
}
