// When one of two workers is stopped, the other one serves the connects that wait at it, as with one queue in the
// kernel.
#include "t.h"
#include <sys/epoll.h>
static void worker(int l)
{
	for (;;) {
		int s = accept(l, NULL, NULL);
		CHECK(s >= 0);
		char b[4];
		recv_all(s, b, 4);
		pid_t me = getpid();
		send_all(s, &me, sizeof me);
		close(s);
	}
}
static pid_t ask(int port, int how)
{
	pid_t who;
	int c = connect_to(port);
	send_all(c, "ask?", 4);
	if (how == 1)
		shutdown(c, SHUT_WR);
	if (how == 2) {
		struct pollfd p = { c, POLLIN, 0 };
		EQ(poll(&p, 1, -1), 1);
	}
	if (how == 3) {
		int e = epoll_create1(0);
		struct epoll_event ev = { EPOLLIN | EPOLLET, { .fd = c } };
		EQ(epoll_ctl(e, EPOLL_CTL_ADD, c, &ev), 0);
		EQ(epoll_wait(e, &ev, 1, -1), 1);
		close(e);
	}
	if (how == 4) {
		fd_set r;
		FD_ZERO(&r);
		FD_SET(c, &r);
		EQ(select(c + 1, &r, NULL, NULL, NULL), 1);
	}
	recv_all(c, &who, sizeof who);
	EQ(recv(c, &who, 1, 0), 0);
	close(c);
	return who;
}
int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	pid_t kid[2];
	for (int i = 0; i < 2; i++)
		if (!(kid[i] = fork_child()))
			worker(l);
	close(l);
	unsigned seen = 0;
	for (int i = 0; i < 5000 && seen != 3; i++) {
		pid_t who = ask(port, 0);
		seen |= who == kid[0] ? 1 : who == kid[1] ? 2 : 4;
	}
	CHECK(seen == 1 || seen == 2 || seen == 3); // the kernel may prefer one, too
	for (int turn = 0; turn < 2; turn++) {
		int st;
		EQ(kill(kid[turn], SIGSTOP), 0);
		EQ(waitpid(kid[turn], &st, WUNTRACED), kid[turn]);
		CHECK(WIFSTOPPED(st));
		for (int i = 0; i < 50; i++)
			EQ(ask(port, i % 5), kid[!turn]);
		EQ(kill(kid[turn], SIGCONT), 0);
		EQ(waitpid(kid[turn], &st, WCONTINUED), kid[turn]);
	}
	for (int i = 0; i < 50; i++) {
		pid_t who = ask(port, i % 5);
		CHECK(who == kid[0] || who == kid[1]);
	}
	for (int i = 0; i < 2; i++) {
		EQ(kill(kid[i], SIGTERM), 0);
		EQ(waitpid(kid[i], NULL, 0), kid[i]);
	}
	return t_ok("worker_stops");
}
