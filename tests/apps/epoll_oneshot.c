// With EPOLLONESHOT there is one report, and then none until EPOLL_CTL_MOD, also if several threads share one epoll
// instance.
#include "t.h"
enum { C = 16, MSGS = 300, T = 3 };
static int ep, port, done;
static int busy[1024];
static void *worker(void *x)
{
	(void)x;
	struct epoll_event ev;
	char b[64];
	while (__atomic_load_n(&done, __ATOMIC_SEQ_CST) < C) {
		int n = epoll_wait(ep, &ev, 1, 20);
		if (n < 0)
			die("epoll_wait");
		if (!n)
			continue;
		int fd = ev.data.fd;
		if (__atomic_exchange_n(&busy[fd], 1, __ATOMIC_SEQ_CST))
			die("two threads got the same one-shot descriptor");
		ssize_t r = recv(fd, b, sizeof b, MSG_DONTWAIT);
		if (r > 0)
			send_all(fd, b, r);
		__atomic_store_n(&busy[fd], 0, __ATOMIC_SEQ_CST);
		if (r == 0) {
			__atomic_add_fetch(&done, 1, __ATOMIC_SEQ_CST);
			continue;
		}
		struct epoll_event e = { EPOLLIN | EPOLLONESHOT, { .fd = fd } };
		if (epoll_ctl(ep, EPOLL_CTL_MOD, fd, &e))
			die("MOD");
	}
	return NULL;
}
static void *client(void *x)
{
	int fd = (int)(long)x;
	char b[64];
	for (int i = 0; i < MSGS; i++) {
		send_all(fd, "0123456789", 10);
		recv_all(fd, b, 10);
	}
	shutdown(fd, SHUT_WR);
	return NULL;
}
int main(void)
{
	t_init();
	int p[2];
	ep = epoll_create1(0);
	pair(p);
	struct epoll_event e = { EPOLLIN | EPOLLONESHOT, { .u32 = 1 } }, ev[2];
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, p[0], &e), 0);
	EQ(epoll_wait(ep, ev, 2, 0), 0);
	send_all(p[1], "a", 1);
	EQ(epoll_wait(ep, ev, 2, 1000), 1);
	EQ(ev[0].events, EPOLLIN);
	send_all(p[1], "b", 1);
	EQ(epoll_wait(ep, ev, 2, 10), 0);
	close(p[1]); // not even the end is reported while disarmed
	EQ(epoll_wait(ep, ev, 2, 10), 0);
	e.events = EPOLLIN | EPOLLRDHUP | EPOLLONESHOT | EPOLLET;
	EQ(epoll_ctl(ep, EPOLL_CTL_MOD, p[0], &e), 0);
	EQ(epoll_wait(ep, ev, 2, 1000), 1);
	EQ(ev[0].events, EPOLLIN | EPOLLRDHUP);
	EQ(epoll_wait(ep, ev, 2, 0), 0);
	close(p[0]);
	int l = listen_on(&port), cl[C];
	pthread_t ct[C], t[T];
	for (int i = 0; i < C; i++) {
		cl[i] = connect_to(port);
		int s = accept(l, NULL, NULL);
		e = (struct epoll_event){ EPOLLIN | EPOLLONESHOT, { .fd = s } };
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, s, &e), 0);
	}
	for (int i = 0; i < T; i++)
		pthread_create(&t[i], NULL, worker, NULL);
	for (int i = 0; i < C; i++)
		pthread_create(&ct[i], NULL, client, (void *)(long)cl[i]);
	for (int i = 0; i < C; i++)
		pthread_join(ct[i], NULL);
	for (int i = 0; i < T; i++)
		pthread_join(t[i], NULL);
	return t_ok("epoll_oneshot");
}
