// A connection is demoted while epoll_wait reports it, and still no call reports a descriptor twice.
#include "t.h"
int main(void)
{
	t_init();
	for (int flags = 0; flags < 3; flags++) {
		int p[2], ep = epoll_create1(0);
		pair(p);
		struct epoll_event ev = { .events = EPOLLIN | EPOLLRDHUP, .data.fd = p[1] }, got[8];
		if (flags)
			ev.events |= flags == 1 ? EPOLLET : EPOLLOUT;
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, p[1], &ev), 0);
		EQ(shutdown(p[0], SHUT_WR), 0);
		EQ(fcntl(p[0], F_SETOWN, getpid()), 0); // only a kernel socket can do that
		for (int calls = 0; calls < 4; calls++) {
			int n = epoll_wait(ep, got, 8, flags == 1 ? 0 : 5000);
			if (n > 1)
				die("%d events, %x and %x", n, got[0].events, got[1].events);
			if (flags != 1 || calls == 0) {
				EQ(n, 1);
				EQ(got[0].data.fd, p[1]);
				EQ(got[0].events & (EPOLLIN | EPOLLRDHUP), EPOLLIN | EPOLLRDHUP);
			}
		}
		char c;
		EQ(recv(p[1], &c, 1, 0), 0);
		send_all(p[1], "x", 1);
		recv_all(p[0], &c, 1);
		close(p[0]);
		close(p[1]);
		close(ep);
	}
	return t_ok("epoll_twice");
}
