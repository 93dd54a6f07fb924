// A write to a closed peer brings a reset: an edge for the writer's own epoll.
#include "t.h"

static int edge(int ep, int ms)
{
	struct epoll_event ev = { 0 };
	return epoll_wait(ep, &ev, 1, ms) > 0 ? (int)ev.events : 0;
}

int main(void)
{
	t_init();
	int p[2], ep = epoll_create1(0);
	pair(p);
	struct epoll_event ev = { .events = EPOLLIN | EPOLLET };
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, p[0], &ev), 0);
	EQ(close(p[1]), 0);
	EQ(edge(ep, 5000), EPOLLIN);
	EQ(edge(ep, 0), 0);
	EQ(send(p[0], "x", 1, 0), 1);
	EQ(edge(ep, 5000), EPOLLIN | EPOLLERR | EPOLLHUP);
	close(ep);
	close(p[0]);
	return t_ok("reset_edge");
}
