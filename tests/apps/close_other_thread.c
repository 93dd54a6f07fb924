// When one thread closes a descriptor on which another thread blocks, the blocked call keeps the connection alive and
// goes on, as on Linux: recv gets later data, and the peer sees no end until it returns. epoll loses the descriptor,
// and epoll_wait goes on waiting. So it is if the connection is first passed to another process, and is the kernel's therefore.
#include "t.h"
#include <sys/syscall.h>
static int p[2], ep, kind;
static volatile pid_t tid;
static long res;
static char buf[16];
static void *waiter(void *x)
{
	(void)x;
	struct epoll_event ev;
	tid = (pid_t)syscall(SYS_gettid);
	if (kind == 0 || kind == 4)
		res = recv(p[0], buf, 16, 0);
	else if (kind == 1)
		res = poll(&(struct pollfd){ p[0], POLLIN, 0 }, 1, 10000);
	else if (kind == 2)
		res = epoll_wait(ep, &ev, 1, 300);
	else
		res = accept(p[0], NULL, NULL);
	return NULL;
}
int main(void)
{
	t_init();
	for (kind = 0; kind < 5; kind++) {
		int port = 0, c = -1, u[2];
		pair(p);
		ep = epoll_create1(0);
		struct epoll_event e = { EPOLLIN, { 0 } };
		epoll_ctl(ep, EPOLL_CTL_ADD, p[0], &e);
		if (kind == 3) {
			close(p[0]);
			p[0] = listen_on(&port);
		}
		pthread_t t;
		tid = 0;
		pthread_create(&t, NULL, waiter, NULL);
		while (!tid)
			usleep(100);
		let_it_block(getpid(), tid);
		usleep(5000);
		EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, u), 0);
		if (kind == 4)
			pass_fd(u[0], p[0]);
		EQ(close(p[0]), 0);
		FAILS(recv(p[0], buf, 1, MSG_DONTWAIT), EBADF);
		if (kind == 0 || kind == 1) {
			EQ(ready(p[1], POLLRDHUP, 30), 0); // still held by the blocked call
			send_all(p[1], "late", 4);
		} else if (kind == 4) {
			c = take_fd(u[1]);
			send_all(p[1], "late", 4);
		} else if (kind == 3)
			c = connect_to(port); // the blocked accept keeps the listener open
		pthread_join(t, NULL);
		if (kind == 4) {
			EQ(res, 4);
			send_all(c, "more", 4);
			recv_all(p[1], buf, 4);
		} else if (kind == 0) {
			EQ(res, 4);
			CHECK(!memcmp(buf, "late", 4));
			CHECK(ready(p[1], POLLRDHUP, 1000) & POLLRDHUP);
			EQ(recv(p[1], buf, 16, 0), 0);
		} else if (kind == 1) {
			EQ(res, 1);
			CHECK(ready(p[1], POLLIN | POLLRDHUP, 1000)); // closed with unread data: a reset
			FAILS(recv(p[1], buf, 16, 0), ECONNRESET);
		} else if (kind == 2) {
			EQ(res, 0);
			EQ(recv(p[1], buf, 16, 0), 0); // nobody holds it: closed at once
		} else
			CHECK(res >= 0);
		if (c >= 0)
			close(c);
		close(p[1]), close(u[0]), close(u[1]);
		close(ep);
	}
	return t_ok("close_other_thread");
}
