// A listener's queue takes one connect more than its backlog (listen(2)); further connects stay pending until others
// are accepted.
#include "t.h"
#include <sys/syscall.h>
static int l, port;
static int try_connect(void)
{
	struct sockaddr_in a = addr4(port);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK(fd >= 0);
	FAILS(connect(fd, (struct sockaddr *)&a, sizeof a), EINPROGRESS);
	return fd;
}
static int again(int fd)
{
	struct sockaddr_in a = addr4(port);
	return connect(fd, (struct sockaddr *)&a, sizeof a);
}
static int fill(int backlog, int *c)
{
	l = listen_n(backlog, &port);
	for (int i = 0; i <= backlog; i++)
		c[i] = connect_to(port);
	return backlog + 1;
}
static void pending(int c)
{
	struct sockaddr_storage a;
	socklen_t n = sizeof a;
	char b = 'x';
	int e = 1;
	EQ(ready(c, POLLIN | POLLOUT, 20), 0);
	FAILS(again(c), EALREADY);
	FAILS(getpeername(c, (struct sockaddr *)&a, &n), ENOTCONN);
	FAILS(send(c, &b, 1, MSG_NOSIGNAL), EAGAIN);
	FAILS(recv(c, &b, 1, 0), EAGAIN);
	n = sizeof e;
	EQ(getsockopt(c, SOL_SOCKET, SO_ERROR, &e, &n), 0);
	EQ(e, 0);
	struct tcp_info info;
	n = sizeof info;
	EQ(getsockopt(c, IPPROTO_TCP, TCP_INFO, &info, &n), 0);
	EQ(info.tcpi_state, TCP_SYN_SENT);
}
static int accepted(void)
{
	EQ(ready(l, POLLIN, 20000), POLLIN);
	int s = accept(l, NULL, NULL);
	CHECK(s >= 0);
	return s;
}
// One that is pending comes about when another one is accepted.
static void comes_about(int backlog)
{
	int c[16], n = fill(backlog, c), one = try_connect(), two, e;
	pending(one);
	int ep = epoll_create1(0);
	struct epoll_event ev = { EPOLLOUT | EPOLLET, { .fd = one } };
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, one, &ev), 0);
	EQ(epoll_wait(ep, &ev, 1, 0), 0);
	close(accepted());
	EQ(epoll_wait(ep, &ev, 1, 20000), 1);
	EQ(ev.events, EPOLLOUT);
	EQ(ev.data.fd, one);
	EQ(epoll_wait(ep, &ev, 1, 0), 0);
	EQ(send(one, "1", 1, 0), 1);
	two = try_connect(); // the first has its place
	pending(two);
	for (int i = 1; i < n; i++)
		close(accepted());
	char b;
	int s = accepted();
	EQ(recv(s, &b, 1, 0), 1);
	EQ(b, '1');
	EQ(ready(two, POLLOUT, 20000), POLLOUT);
	socklen_t len = sizeof e;
	EQ(getsockopt(two, SOL_SOCKET, SO_ERROR, &e, &len), 0);
	EQ(e, 0);
	EQ(again(two), 0);
	FAILS(again(two), EISCONN);
	EQ(send(two, "2", 1, 0), 1);
	int t = accepted();
	EQ(recv(t, &b, 1, 0), 1);
	EQ(b, '2');
	for (int i = 0; i < n; i++)
		close(c[i]);
	close(s), close(t), close(one), close(two), close(ep), close(l);
}
// What is given up the server never sees.
static void given_up(int how)
{
	int c[4], n = fill(2, c), one = try_connect();
	char b;
	pending(one);
	if (how == 3) {
		close(one);
	} else {
		EQ(shutdown(one, how), 0);
		EQ(ready(one, 0, 0), POLLERR | POLLHUP);
		close(one);
	}
	for (int i = 0; i < n; i++) {
		int s = accepted();
		EQ(send(c[i], "x", 1, 0), 1);
		EQ(recv(s, &b, 1, 0), 1);
		close(s), close(c[i]);
	}
	EQ(ready(l, POLLIN, 20), 0);
	close(l);
}
static volatile pid_t blocks_in;
static void *blocks(void *arg)
{
	blocks_in = (pid_t)syscall(SYS_gettid);
	*(int *)arg = connect_to(port);
	return arg;
}
static void waits(void)
{
	int c[4], n = fill(0, c), late = -1;
	struct sockaddr_in a = addr4(port);
	struct timeval tv = { 0, 50000 };
	int fd = socket(AF_INET, SOCK_STREAM, 0); // that waits no longer than it is told
	EQ(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv), 0);
	FAILS(connect(fd, (struct sockaddr *)&a, sizeof a), EINPROGRESS);
	close(fd);
	pthread_t t;
	EQ(pthread_create(&t, NULL, blocks, &late), 0);
	while (!blocks_in)
		usleep(100);
	let_it_block(getpid(), blocks_in);
	EQ(late, -1);
	close(accepted());
	EQ(pthread_join(t, NULL), 0);
	CHECK(late >= 0);
	close(accepted());
	close(late);
	for (int i = 0; i < n; i++)
		close(c[i]);
	close(l);
}
int main(void)
{
	t_init();
	signal(SIGPIPE, SIG_IGN);
	comes_about(2);
	for (int how = 0; how < 4; how++)
		given_up(how);
	waits();
	return t_ok("backlog_full");
}
