// Counts what a whole process does: whole [NAME=VALUE...] PROGRAM ARGUMENTS...
//
// One line on standard error: system calls, page faults. The counts begin when the program is executed; those of a
// launcher that replaces itself by the program are included. The exit status is the program's.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static void fail(const char *what)
{
	fprintf(stderr, "whole: %s: %s\n", what, strerror(errno));
	exit(2);
}

// Executes the program with the variables in its environment, and not in this one's. It stops then.
static pid_t start(char **argv)
{
	pid_t p = fork();
	if (p < 0)
		fail("fork");
	if (!p) {
		if (ptrace(PTRACE_TRACEME, 0, 0, 0))
			fail("trace");
		for (; *argv && strchr(*argv, '='); argv++)
			putenv(*argv);
		execvp(argv[0], argv);
		fail(argv[0]);
	}
	return p;
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		fprintf(stderr, "usage: whole [NAME=VALUE...] PROGRAM ARGUMENTS...\n");
		return 2;
	}
	pid_t p = start(argv + 1);
	int status, begun = 0;
	long stops = 0;
	struct rusage before = { 0 }, used;
	for (;;) {
		if (wait4(p, &status, 0, &used) != p)
			fail("wait");
		if (!WIFSTOPPED(status))
			break;
		int signal = WSTOPSIG(status);
		if (!begun) {
			// The program has been executed, and nothing of it has run.
			begun = 1, signal = 0;
			if (ptrace(PTRACE_SETOPTIONS, p, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXEC))
				fail("options");
			before = used;
		} else if (signal == (SIGTRAP | 0x80)) {
			stops++, signal = 0;
		} else if (signal == SIGTRAP) {
			signal = 0;
		}
		if (ptrace(PTRACE_SYSCALL, p, 0, signal))
			fail("going on");
	}
	// Each call stops twice, but for the last one, which ends the program.
	fprintf(stderr, "%ld %ld\n", (stops + 1) / 2, used.ru_minflt - before.ru_minflt);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
