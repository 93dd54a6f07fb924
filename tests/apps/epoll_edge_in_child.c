// A child that waits edge-triggered on a connection of its parent sleeps, although there is room, because the room was
// reported to it before.
#include "t.h"
// How often this process has gone to sleep by itself (getrusage(2)).
static long sleeps(void)
{
	struct rusage u;
	EQ(getrusage(RUSAGE_SELF, &u), 0);
	return u.ru_nvcsw;
}
int main(void)
{
	int p[2];
	t_init();
	pair(p);
	pid_t c = fork();
	if (!c) {
		close(p[1]);
		int ep = epoll_create1(0);
		struct epoll_event ev = { .events = EPOLLIN | EPOLLOUT | EPOLLET };
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, p[0], &ev), 0);
		EQ(epoll_wait(ep, &ev, 1, 10000), 1);
		EQ(ev.events, EPOLLOUT);
		long before = sleeps();
		EQ(epoll_wait(ep, &ev, 1, 100), 0);
		CHECK(sleeps() > before);
		send_all(p[0], "x", 1);
		EQ(epoll_wait(ep, &ev, 1, 10000), 1);
		_exit(0);
	}
	close(p[0]);
	char b;
	EQ(recv(p[1], &b, 1, 0), 1);
	send_all(p[1], "y", 1);
	int status;
	EQ(waitpid(c, &status, 0), c);
	EQ(status, 0);
	return t_ok("epoll_edge_in_child");
}
