// Parent and child both go on with a connection after a fork under its other names and inside libc (daemon(3),
// forkpty(3)), and either may end first.
#include "t.h"
#include <dlfcn.h>
#include <pty.h>
#include <utmp.h>
extern pid_t __fork(void), __vfork(void);
static pid_t as_daemon(void) // daemon(3) as a fork: its parent is another process
{
	pid_t p = fork();
	if (!p) {
		EQ(daemon(1, 1), 0);
		signal(SIGALRM, t_alarm);
		alarm(t_limit());
	}
	return p;
}
static int master;
static pid_t as_forkpty(void) { return forkpty(&master, NULL, NULL, NULL); }
static pid_t as_Fork(void)
{
	pid_t (*f)(void) = (pid_t (*)(void))dlsym(RTLD_DEFAULT, "_Fork");
	return f ? f() : fork();
}
static struct { const char *name; pid_t (*f)(void); } WAYS[] = {
	{ "fork", fork }, { "__fork", __fork }, { "_Fork", as_Fork }, { "daemon", as_daemon }, { "forkpty", as_forkpty },
};
int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	pid_t peer = fork_child();
	if (!peer) {
		for (unsigned i = 0; i < 10; i++) {
			int fd = connect_to(port);
			char b[64];
			ssize_t n;
			while ((n = recv(fd, b, sizeof b, 0)) > 0)
				send_all(fd, b, n);
			EQ(n, 0); // the end comes when both are gone, and not before
			close(fd);
		}
		_exit(0);
	}
	for (unsigned i = 0; i < 10; i++) {
		int fd = accept(l, NULL, NULL), inherits = i & 1;
		char b[8];
		struct sig mine, its;
		CHECK(fd >= 0);
		expect_shm(fd);
		sigpair(&mine, &its);
		if (inherits && i / 2 != 3) { // the connection also under number 0, which forkpty replaces
			close(0);
			EQ(dup(fd), 0);
		}
		pid_t kid = WAYS[i / 2].f();
		CHECK(kid >= 0);
		if (!kid) {
			signal(SIGALRM, t_alarm);
			alarm(t_limit());
			close(l);
			for (int k = 0; k < 50; k++) {
				await(its);
				send_all(fd, "kid ", 4);
				recv_all(fd, b, 4);
				CHECK(!memcmp(b, "kid ", 4));
				tell(its);
			}
			_exit(0);
		}
		for (int k = 0; k < 50; k++) { // in turns
			send_all(fd, "main", 4);
			recv_all(fd, b, 4);
			if (memcmp(b, "main", 4))
				die("%s: wrong answer %.4s", WAYS[i / 2].name, b);
			tell(mine);
			await(mine);
		}
		close(fd);
		if (inherits && i / 2 != 3) {
			close(0);
			EQ(open("/dev/null", O_RDONLY), 0);
		}
		int st;
		EQ(waitpid(kid, &st, 0), kid);
		if (st && i / 2 != 3) // daemon's parent ends at once
			die("%s: the child ended with %x", WAYS[i / 2].name, st);
		close(mine.r), close(mine.w), close(its.r), close(its.w);
		if (i / 2 == 4)
			close(master);
	}
	reap(peer);
	return t_ok("libc_forks");
}
