// A poll of an inner instance takes no event from it: the outer instance still reports the edge, and a connection that
// is removed afterwards is no longer reported. This also holds for a descriptor that is no connection, beside one that
// is.
#include "t.h"
static int inner, outer;
static void add(int ep, int fd, unsigned events)
{
	struct epoll_event ev = { .events = events, .data.fd = fd };
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev), 0);
}
static int told(int ep, int fd)
{
	struct epoll_event ev[4];
	int n = epoll_wait(ep, ev, 4, 0);
	for (int i = 0; i < n; i++)
		if (ev[i].data.fd == fd)
			return ev[i].events;
	return 0;
}
// `fd` has room, or something to read, when it is registered.
static void look(int fd, unsigned what)
{
	outer = epoll_create1(0);
	add(outer, inner, EPOLLIN | EPOLLET);
	told(outer, inner);
	add(inner, fd, what | EPOLLET);
	CHECK(ready(inner, POLLIN, 0) & POLLIN);
	EQ(told(outer, inner), EPOLLIN);
	CHECK(ready(inner, POLLIN, 0) & POLLIN);
	EQ(epoll_ctl(inner, EPOLL_CTL_DEL, fd, NULL), 0);
	EQ(ready(inner, POLLIN, 0), 0);
	EQ(told(inner, fd), 0);
	add(inner, fd, what | EPOLLET);
	CHECK(ready(inner, POLLIN, 0) & POLLIN);
	struct epoll_event ev = { .events = 0, .data.fd = fd };
	EQ(epoll_ctl(inner, EPOLL_CTL_MOD, fd, &ev), 0);
	EQ(told(inner, fd), 0);
	EQ(epoll_ctl(inner, EPOLL_CTL_DEL, fd, NULL), 0);
	close(outer);
}
int main(void)
{
	t_init();
	for (int calls = 0; calls < 8; calls++) {
		int p[2], event = eventfd(1, 0);
		char b[8];
		inner = epoll_create1(0);
		pair(p);
		for (int i = 0; i < calls; i++)
			send_all(p[i % 2], "x", 1), recv_all(p[1 - i % 2], b, 1);
		look(p[0], EPOLLOUT);
		add(inner, p[1], EPOLLIN); // nothing comes
		look(event, EPOLLIN);
		send_all(p[0], "y", 1);
		CHECK(ready(p[1], POLLIN, 5000) & POLLIN);
		EQ(told(inner, p[1]), EPOLLIN);
		close(event);
		close(inner);
		close(p[0]);
		close(p[1]);
	}
	return t_ok("epoll_nested_looked");
}
