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
enum { PENDING = 8 };
static struct pollfd refused[PENDING];
static void *looks_all_the_time(void *p)
{
	for (int left = PENDING; left;) {
		CHECK(poll(refused, PENDING, 0) >= 0);
		for (int i = 0; i < PENDING; i++) {
			if (!refused[i].revents || refused[i].fd < 0)
				continue;
			CHECK(refused[i].revents & POLLERR);
			refused[i].fd = -1 - refused[i].fd, left--;
		}
	}
	return p;
}
// One that looks all the time while the listener ends never finds such a connect established.
static void pending_seen(void)
{
	int port, l = listen_n(0, &port), first = connect_to(port);
	struct sockaddr_in a = addr4(port);
	pthread_t t;
	for (int i = 0; i < PENDING; i++) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		FAILS(connect(fd, (struct sockaddr *)&a, sizeof a), EINPROGRESS);
		refused[i] = (struct pollfd){ fd, POLLOUT, 0 };
	}
	EQ(poll(refused, PENDING, 50), 0);
	pthread_create(&t, NULL, looks_all_the_time, NULL);
	usleep(1000);
	close(l);
	pthread_join(t, NULL);
	for (int i = 0; i < PENDING; i++) {
		int fd = -1 - refused[i].fd, e = 0;
		EQ(getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &(socklen_t){ sizeof e }), 0);
		EQ(e, ECONNREFUSED);
		close(fd);
	}
	close(first);
}
static int watched;
static void *waits_for_an_edge(void *p)
{
	struct epoll_event e = { 0 };
	EQ(epoll_wait(watched, &e, 1, 10000), 1);
	CHECK(e.events & EPOLLERR && e.events & EPOLLHUP);
	return p;
}
// A thread that waits for an edge finds the refusal too, and not that the connect was established before.
static void pending_edge(void)
{
	int port, c[2], l = listen_n(0, &port), e = 0;
	struct sockaddr_in a = addr4(port);
	struct epoll_event ev = { EPOLLIN | EPOLLOUT | EPOLLET, { 0 } };
	socklen_t n = sizeof e;
	pthread_t t;
	c[0] = connect_to(port);
	c[1] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	FAILS(connect(c[1], (struct sockaddr *)&a, sizeof a), EINPROGRESS);
	watched = epoll_create1(0);
	EQ(epoll_ctl(watched, EPOLL_CTL_ADD, c[1], &ev), 0);
	EQ(epoll_wait(watched, &ev, 1, 50), 0);
	pthread_create(&t, NULL, waits_for_an_edge, NULL);
	close(l);
	pthread_join(t, NULL);
	EQ(getsockopt(c[1], SOL_SOCKET, SO_ERROR, &e, &n), 0);
	EQ(e, ECONNREFUSED);
	close(watched), close(c[0]), close(c[1]);
}
// A connect that blocks at a full listener ends at its time limit, and goes on nevertheless: the next calls say that.
static void limited(void)
{
	int port, l = listen_n(0, &port), first = connect_to(port), c = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in a = addr4(port);
	struct timeval t = { 0, 100000 };
	EQ(setsockopt(c, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t), 0);
	FAILS(connect(c, (struct sockaddr *)&a, sizeof a), EINPROGRESS);
	FAILS(connect(c, (struct sockaddr *)&a, sizeof a), EALREADY);
	FAILS(connect(nonblock(c), (struct sockaddr *)&a, sizeof a), EALREADY);
	close(accept(l, NULL, NULL));
	EQ(ready(c, POLLOUT, 20000) & POLLOUT, POLLOUT);
	EQ(connect(c, (struct sockaddr *)&a, sizeof a), 0);
	FAILS(connect(c, (struct sockaddr *)&a, sizeof a), EISCONN);
	close(first), close(c), close(l);
}
static int sleeping_port;
static volatile pid_t connecting;
static void *connects(void *fd)
{
	connecting = gettid();
	struct sockaddr_in a = addr4(sleeping_port);
	FAILS(connect(*(int *)fd, (struct sockaddr *)&a, sizeof a), ECONNRESET);
	return NULL;
}
// A thread sleeps in connect at a full listener, and another one shuts the socket down, which ends the connect.
static void given_up(void)
{
	int l = listen_n(0, &sleeping_port), first = connect_to(sleeping_port), c = socket(AF_INET, SOCK_STREAM, 0), e = 1;
	struct sockaddr_in a = addr4(sleeping_port);
	socklen_t n = sizeof e;
	pthread_t t;
	connecting = 0;
	pthread_create(&t, NULL, connects, &c);
	while (!connecting)
		usleep(100);
	let_it_block(getpid(), connecting);
	EQ(shutdown(c, SHUT_WR), 0);
	pthread_join(t, NULL);
	EQ(getsockopt(c, SOL_SOCKET, SO_ERROR, &e, &n), 0);
	EQ(e, 0);
	close(accept(l, NULL, NULL));
	EQ(connect(c, (struct sockaddr *)&a, sizeof a), 0);
	close(first), close(c), close(l);
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
		CHECK(errno == EADDRINUSE && i < 2000);
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
static int listener, by_epoll, asks, seen;
// Sleeps until there is something, or asks all the time.
static void *waits(void *p)
{
	int ms = asks ? 0 : 10000;
	if (by_epoll) {
		int ep = epoll_create1(0);
		struct epoll_event e = { EPOLLIN, { 0 } };
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, listener, &e), 0);
		for (int n = 0; n != 1;)
			CHECK((n = epoll_wait(ep, &e, 1, ms)) == 1 || (n == 0 && asks));
		seen = e.events;
		close(ep);
	} else {
		while (!(seen = ready(listener, POLLIN, ms)))
			CHECK(asks);
	}
	return p;
}
static void shut(void)
{
	for (int i = 0; i < 300; i++) {
		int port;
		pthread_t t;
		by_epoll = i & 1, asks = i & 2;
		listener = nonblock(listen_on(&port));
		EQ(pthread_create(&t, NULL, waits, NULL), 0);
		usleep(i % 10 * 100 + 100);
		EQ(shutdown(listener, SHUT_RDWR), 0);
		pthread_join(t, NULL);
		EQ(seen & (POLLHUP | POLLIN), POLLHUP);
		FAILS(accept(listener, NULL, NULL), EINVAL);
		close(listener);
	}
}
int main(void)
{
	t_init();
	pending(0);
	pending(1);
	pending_seen();
	pending_edge();
	limited();
	for (int i = 0; i < 20; i++)
		given_up();
	same_addresses();
	shut();
	return t_ok("connect_ends");
}
