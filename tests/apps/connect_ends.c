// Connects that the kernel refuses: one that waits at a full listener when that is closed (ECONNREFUSED), and one that would
// make a second connection with the addresses of a living one (EADDRNOTAVAIL). Who waits for connections at a listener that
// another thread shuts down sees its end, and not a connection.
#include "t.h"

static void pending(int blocks)
{
	int port, c[2], l = listen_n(0, &port);
	struct sockaddr_in a = addr4(port);
	for (int i = 0; i < 2; i++) {
		c[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		int r = connect(c[i], (struct sockaddr *)&a, sizeof a);
		CHECK(r == 0 || errno == EINPROGRESS);
		ready(c[i], POLLOUT, 50);
	}
	EQ(ready(c[1], POLLOUT, 50), 0);
	close(l);
	int events = ready(c[1], POLLIN, 10000), e = 0;
	socklen_t n = sizeof e;
	CHECK(events & POLLERR && events & POLLHUP);
	if (blocks) {
		char b;
		FAILS(read(c[1], &b, 1), ECONNREFUSED);
		EQ(read(c[1], &b, 1), 0);
	} else {
		EQ(getsockopt(c[1], SOL_SOCKET, SO_ERROR, &e, &n), 0);
		EQ(e, ECONNREFUSED);
	}
	close(c[0]), close(c[1]);
}
static int reusing(void)
{
	int on = 1, s = socket(AF_INET, SOCK_STREAM, 0);
	EQ(setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
	return s;
}
static void same_addresses(void)
{
	int port, other, l = listen_on(&port), l2 = listen_on(&other), a = reusing(), b = reusing();
	struct sockaddr_in to = addr4(port), to2 = addr4(other), me;
	socklen_t n = sizeof me;
	// Another program's connection may have the port that the kernel has chosen, and not share it.
	for (int i = 0;; i++) {
		EQ(connect(a, (struct sockaddr *)&to, sizeof to), 0);
		EQ(getsockname(a, (struct sockaddr *)&me, &n), 0);
		if (!bind(b, (struct sockaddr *)&me, n))
			break;
		CHECK(errno == EADDRINUSE && i < 20);
		abortive(a), close(a);
		close(accept(l, NULL, NULL));
		a = reusing();
	}
	FAILS(connect(b, (struct sockaddr *)&to, sizeof to), EADDRNOTAVAIL);
	// Another destination makes another pair.
	EQ(connect(b, (struct sockaddr *)&to2, sizeof to2), 0);
	int s = accept(l, NULL, NULL), s2 = accept(l2, NULL, NULL);
	CHECK(s >= 0 && s2 >= 0);
	close(a), close(b), close(s), close(s2), close(l), close(l2);
}
static int listener, by_epoll, seen;
static void *waits(void *p)
{
	(void)p;
	if (by_epoll) {
		int ep = epoll_create1(0);
		struct epoll_event e = { EPOLLIN, { 0 } };
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, listener, &e), 0);
		EQ(epoll_wait(ep, &e, 1, 10000), 1);
		seen = e.events;
		close(ep);
	} else {
		seen = ready(listener, POLLIN, 10000);
	}
	return NULL;
}
static void shut(void)
{
	for (int i = 0; i < 300; i++) {
		int port;
		pthread_t t;
		by_epoll = i & 1;
		listener = nonblock(listen_on(&port));
		EQ(pthread_create(&t, NULL, waits, NULL), 0);
		usleep(i % 10 * 100 + 100);
		EQ(shutdown(listener, SHUT_RDWR), 0);
		pthread_join(t, NULL);
		CHECK(seen & POLLHUP);
		FAILS(accept(listener, NULL, NULL), EINVAL);
		close(listener);
	}
}
int main(void)
{
	t_init();
	pending(0);
	pending(1);
	same_addresses();
	shut();
	return t_ok("connect_ends");
}
