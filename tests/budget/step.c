// Counts the instructions of marked calls: step PROGRAM ARGUMENTS...
//
// The program asks to be traced, stops, and marks the begin of a call with a trap whose first register points to the call's
// name, and its end with a trap where that is null. In between it is single-stepped: the count is exact and the same
// each time, on a busy machine as well. One line per call: instructions, system calls, name. With --where also the
// addresses passed, to find out what a call does.
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined __x86_64__
#define PC(r) (r).rip
#define ARGUMENT(r) (r).rdi
#define SYSCALL(word) (((word) & 0xffff) == 0x050f)
#define TRAP_LENGTH 0 // the processor has gone past it
#elif defined __aarch64__
#define PC(r) (r).pc
#define ARGUMENT(r) (r).regs[0]
#define SYSCALL(word) (((word) & 0xffe0001f) == 0xd4000001)
#define TRAP_LENGTH 4
#else
#error "step: not for this architecture"
#endif

typedef struct user_regs_struct regs;

static void fail(const char *what)
{
	fprintf(stderr, "step: %s: %s\n", what, strerror(errno));
	exit(2);
}

static regs look(pid_t p)
{
	regs r;
	struct iovec v = { &r, sizeof r };
	if (ptrace(PTRACE_GETREGSET, p, NT_PRSTATUS, &v))
		fail("registers");
	return r;
}

// Goes on until the next SIGTRAP; other signals are the program's own. 0: it has ended, with *status.
static int go_on(pid_t p, int how, int *status)
{
	for (long pass = 0;; pass = WSTOPSIG(*status)) {
		if (ptrace(how, p, 0, pass) || waitpid(p, status, 0) != p)
			fail("going on");
		if (!WIFSTOPPED(*status))
			return 0;
		if (WSTOPSIG(*status) == SIGTRAP)
			return 1;
	}
}

static void skip_trap(pid_t p, regs *r)
{
	if (!TRAP_LENGTH)
		return;
	PC(*r) += TRAP_LENGTH;
	struct iovec v = { r, sizeof *r };
	if (ptrace(PTRACE_SETREGSET, p, NT_PRSTATUS, &v))
		fail("registers");
}

static int is_trap(long word)
{
#if defined __x86_64__
	return (word & 0xff) == 0xcc;
#else
	return (word & 0xffe0001f) == 0xd4200000;
#endif
}

// Steps to the trap at the end of the call.
static void count(pid_t p, const char *name, int where, int *status)
{
	long instructions = 0, calls = 0;
	for (;;) {
		regs r = look(p);
		errno = 0;
		long word = ptrace(PTRACE_PEEKTEXT, p, PC(r), 0);
		if (errno)
			fail("instruction");
		if (is_trap(word))
			break;
		instructions++;
		calls += SYSCALL(word);
		if (where)
			printf("at %llx\n", (unsigned long long)PC(r));
		if (!go_on(p, PTRACE_SINGLESTEP, status))
			fail("the program ended in a marked call");
	}
	printf("%ld %ld %s\n", instructions, calls, name);
	if (!go_on(p, PTRACE_CONT, status))
		fail("the program ended in a marked call");
	regs r = look(p);
	skip_trap(p, &r);
}

int main(int argc, char **argv)
{
	int where = argc > 1 && !strcmp(argv[1], "--where");
	argv += 1 + where;
	if (!*argv) {
		fprintf(stderr, "usage: step [--where] PROGRAM ARGUMENTS...\n");
		return 2;
	}
	pid_t p = fork();
	if (p < 0)
		fail("fork");
	if (!p) {
		execvp(argv[0], argv);
		fail(argv[0]);
	}
	int status;
	// Traced from its own stop on: a launcher may replace itself by it before.
	if (waitpid(p, &status, 0) != p)
		fail("wait");
	while (WIFSTOPPED(status) && go_on(p, PTRACE_CONT, &status)) {
		regs r = look(p);
		char name[64] = "";
		struct iovec to = { name, sizeof name - 1 }, from = { (void *)ARGUMENT(r), sizeof name - 1 };
		if (!ARGUMENT(r) || process_vm_readv(p, &to, 1, &from, 1, 0) <= 0)
			fail("the name of a call");
		skip_trap(p, &r);
		count(p, name, where, &status);
	}
	fflush(stdout);
	if (!WIFEXITED(status))
		fprintf(stderr, "step: the program ended by signal %d\n", WTERMSIG(status));
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
