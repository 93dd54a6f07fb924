// Level-triggered epoll serves 20 clients of an echo server in another thread, and follows the basic rules of epoll(7).
#include "t.h"
enum { C = 20, ROUNDS = 200 };
static int port;
static void *clients(void *x)
{
	(void)x;
	int fd[C];
	unsigned char a[3000], b[3000];

	for (int i = 0; i < C; i++)
		fd[i] = connect_to(port);
	for (int r = 0; r < ROUNDS; r++) {
		int n = 1 + r * 13 % 3000;
		for (int i = 0; i < C; i++) {
			pat_fill(a, n, r, i);
			send_all(fd[i], a, n);
		}
		for (int i = 0; i < C; i++) {
			recv_all(fd[i], b, n);
			pat_check(b, n, r, i);
		}
	}
	for (int i = 0; i < C; i++)
		close(fd[i]);
	return NULL;
}
int main(void)
{
	t_init();
	int l = listen_on(&port), ep = epoll_create1(0), open_ = 0, seen = 0;
	struct epoll_event e = { EPOLLIN, { .fd = l } }, ev[7];
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, l, &e), 0);
	pthread_t t;
	pthread_create(&t, NULL, clients, NULL);
	while (seen < C || open_) {
		int n = epoll_wait(ep, ev, 7, -1);
		CHECK(n > 0);
		for (int i = 0; i < n; i++) {
			int fd = ev[i].data.fd;
			if (fd == l) {
				int c = accept4(l, NULL, NULL, SOCK_NONBLOCK);
				CHECK(c >= 0);
				EQ(setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int)), 0);
				e = (struct epoll_event){ EPOLLIN, { .fd = c } };
				EQ(epoll_ctl(ep, EPOLL_CTL_ADD, c, &e), 0);
				seen++, open_++;
				continue;
			}
			char b[500]; // less than there is: level-triggered reports again
			ssize_t r = recv(fd, b, sizeof b, 0);
			if (r > 0)
				send_all(fd, b, r);
			else if (r == 0) {
				close(fd); // leaves the epoll by itself
				open_--;
			} else
				die("recv");
		}
	}
	pthread_join(t, NULL);
	EQ(epoll_wait(ep, ev, 7, 0), 0);
	int p[2];
	pair(p);
	e = (struct epoll_event){ EPOLLIN | EPOLLOUT, { .u64 = 0x1122334455667788 } };
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, p[0], &e), 0);
	FAILS(epoll_ctl(ep, EPOLL_CTL_ADD, p[0], &e), EEXIST);
	FAILS(epoll_ctl(ep, EPOLL_CTL_MOD, p[1], &e), ENOENT);
	FAILS(epoll_ctl(ep, EPOLL_CTL_DEL, p[1], NULL), ENOENT);
	FAILS(epoll_ctl(ep, EPOLL_CTL_ADD, ep, &e), EINVAL);
	FAILS(epoll_ctl(ep, EPOLL_CTL_ADD, 9999, &e), EBADF);
	FAILS(epoll_wait(ep, ev, 0, 0), EINVAL);
	for (int i = 0; i < 3; i++) {
		EQ(epoll_wait(ep, ev, 7, 0), 1);
		EQ(ev[0].events, EPOLLOUT);
		CHECK(ev[0].data.u64 == 0x1122334455667788);
	}
	send_all(p[1], "x", 1);
	CHECK(ready(p[0], POLLIN, 1000));
	for (int i = 0; i < 3; i++) {
		EQ(epoll_wait(ep, ev, 7, 0), 1);
		EQ(ev[0].events, EPOLLIN | EPOLLOUT);
	}
	e.events = EPOLLIN;
	char c;
	EQ(epoll_ctl(ep, EPOLL_CTL_MOD, p[0], &e), 0);
	EQ(epoll_wait(ep, ev, 7, 0), 1);
	EQ(ev[0].events, EPOLLIN);
	EQ(recv(p[0], &c, 1, 0), 1);
	EQ(epoll_wait(ep, ev, 7, 0), 0);
	double t0 = now();
	EQ(epoll_wait(ep, ev, 7, 30), 0);
	CHECK(now() - t0 > 0.028);
	EQ(shutdown(p[1], SHUT_WR), 0);
	EQ(epoll_wait(ep, ev, 7, 1000), 1);
	EQ(ev[0].events, EPOLLIN);
	e.events = EPOLLRDHUP;
	EQ(epoll_ctl(ep, EPOLL_CTL_MOD, p[0], &e), 0);
	EQ(epoll_wait(ep, ev, 7, 0), 1);
	EQ(ev[0].events, EPOLLRDHUP);
	EQ(epoll_ctl(ep, EPOLL_CTL_DEL, p[0], NULL), 0);
	EQ(epoll_wait(ep, ev, 7, 0), 0);
	return t_ok("epoll_lt");
}
