// Setting SO_RCVLOWAT causes an edge if enough bytes, or the end, have arrived.
#include "t.h"
static struct epoll_event ev[4];
static void set(int fd, int n) { EQ(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &n, sizeof n), 0); }
#define SEES(e, n) EQ(epoll_wait(e, ev, 4, 0), n)
int main(void)
{
	t_init();
	int port, l = listen_on(&port), e = epoll_create1(0), w = epoll_create1(0), n;
	int p[2] = { connect_to(port), accept(l, NULL, NULL) };
	char b[100];
	for (int i = 0; i < 40; i++) { // what began on TCP goes over first: that is an edge too
		send_all(p[i & 1], "w", 1);
		recv_all(p[!(i & 1)], b, 1);
	}
	struct epoll_event x = { EPOLLIN | EPOLLET, { 0 } };
	EQ(epoll_ctl(e, EPOLL_CTL_ADD, p[0], &x), 0);
	x.events = EPOLLOUT | EPOLLET;
	EQ(epoll_ctl(w, EPOLL_CTL_ADD, p[0], &x), 0);
	SEES(w, 1);
	set(p[0], 1);
	SEES(e, 0);
	memset(b, 'x', sizeof b);
	send_all(p[1], b, sizeof b);
	do
		EQ(ioctl(p[0], FIONREAD, &n), 0);
	while (n < (int)sizeof b);
	SEES(e, 1);
	SEES(e, 0);
	for (int i = 0; i < 3; i++) {
		set(p[0], 50);
		SEES(e, 1);
		SEES(e, 0);
	}
	set(p[0], 200);
	SEES(e, 0);
	set(p[0], 100);
	SEES(e, 1);
	recv_all(p[0], b, sizeof b);
	set(p[0], 1);
	SEES(e, 0);
	shutdown(p[1], SHUT_WR);
	EQ(ready(p[0], POLLRDHUP, 5000), POLLRDHUP);
	SEES(e, 1);
	SEES(e, 0);
	EQ(ready(e, POLLIN, 0), 0);
	set(p[0], 1);
	EQ(ready(e, POLLIN, 0), POLLIN);
	SEES(e, 1);
	set(p[0], 10);
	SEES(e, 1);
	SEES(e, 0);
	SEES(w, 1); // the end
	SEES(w, 0);
	return t_ok("rcvlowat_edge");
}
