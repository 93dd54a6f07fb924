// Children that are made by clone(2) and not by fork(2) go on with the connections that their parent has accepted,
// while the parent closes its own copies.
#include "t.h"
#include <linux/sched.h>
#include <sched.h>
#include <sys/syscall.h>

static int served, client;

static int serve(void *unused)
{
	char b[8];
	(void)unused;
	if (client >= 0)
		close(client);
	recv_all(served, b, 8);
	CHECK(!memcmp(b, "question", 8));
	send_all(served, "answer", 6);
	CHECK(recv(served, b, 1, 0) == 0);
	_exit(0);
}

static pid_t by_clone(void) { return syscall(SYS_clone, (long)SIGCHLD, 0L, 0L, 0L, 0L); }
static pid_t by_clone3(void)
{
	struct clone_args a = { .exit_signal = SIGCHLD };
	return syscall(SYS_clone3, &a, sizeof a);
}
static pid_t by_function(void)
{
	static char stack[1 << 16] __attribute__((aligned(16)));
	return clone(serve, stack + sizeof stack, SIGCHLD, NULL);
}
// A process that has the parent's descriptors: the two close one table.
static pid_t with_files(void)
{
	pid_t p = syscall(SYS_clone, (long)(SIGCHLD | CLONE_FILES), 0L, 0L, 0L, 0L);
	if (p > 0)
		reap(p);
	return p;
}
#ifdef SYS_fork
static pid_t by_fork(void) { return syscall(SYS_fork); }
#else
#define by_fork by_clone
#endif

static void one(pid_t (*make)(void))
{
	char b[8];
	int port, l = listen_on(&port), c = connect_to(port);
	client = make == with_files ? -1 : c;
	served = accept(l, NULL, NULL);
	CHECK(served >= 0);
	if (make != with_files)
		expect_shm(served);
	// Written before the child is there, and read by it.
	send_all(c, "question", 8);
	if (make == with_files)
		CHECK(!shutdown(c, SHUT_WR));
	pid_t p = make();
	CHECK(p >= 0);
	if (p == 0)
		serve(NULL);
	EQ(close(served), 0);
	recv_all(c, b, 6);
	CHECK(!memcmp(b, "answer", 6));
	close(c);
	close(l);
	if (make != with_files)
		reap(p);
}

int main(void)
{
	t_init();
	pid_t (*ways[])(void) = { by_clone, by_clone3, by_function, by_fork, by_clone, with_files };
	for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
		one(ways[i]);
	return t_ok("clone");
}
