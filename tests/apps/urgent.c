// Urgent data, signal-driven input and zero-copy sends, which only a kernel socket supports, work on connections that
// began in shared memory.
#include "t.h"
#include <linux/errqueue.h>
#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#define MSG_ZEROCOPY 0x4000000
#endif
static volatile int got_io;
static void on_io(int s) { (void)s; got_io++; }
static void urgent(int again)
{
	int p[2];
	char b[16];
	pair(p);
	send_all(p[0], "abc", 3);
	recv_all(p[1], b, 3); // what shared memory still has comes before the news of urgent data
	if (again) {
		EQ(send(p[0], "x", 1, MSG_OOB), 1);
		struct pollfd w = { p[1], POLLPRI, 0 };
		EQ(poll(&w, 1, -1), 1);
		EQ(recv(p[1], b, 1, MSG_OOB), 1);
	}
	send_all(p[0], "abc", 3);
	EQ(send(p[0], "d", 1, MSG_OOB), 1);
	send_all(p[0], "ef", 2);
	if (!again)
		recv_all(p[1], b, 3);
	struct pollfd w = { p[1], POLLPRI, 0 };
	EQ(poll(&w, 1, -1), 1);
	CHECK(w.revents & POLLPRI);
	if (again) {
		EQ(recv(p[1], b, sizeof b, 0), 3); // up to the mark
		EQ(sockatmark(p[1]), 1);
	}
	CHECK(!memcmp(b, "abc", 3));
	EQ(recv(p[1], b, 1, MSG_OOB), 1);
	EQ(b[0], 'd');
	recv_all(p[1], b, 2);
	CHECK(!memcmp(b, "ef", 2));
	send_all(p[1], "back", 4);
	recv_all(p[0], b, 4);
	close(p[0]);
	EQ(recv(p[1], b, 1, 0), 0);
	close(p[1]);
}
int main(void)
{
	t_init();
	urgent(0);
	urgent(1);

	int p[2];
	char b[16];
	pair(p);
	struct sigaction sa = { .sa_handler = on_io };
	sigaction(SIGIO, &sa, NULL);
	sigset_t block, old;
	sigemptyset(&block);
	sigaddset(&block, SIGIO);
	sigprocmask(SIG_BLOCK, &block, &old);
	EQ(fcntl(p[1], F_SETOWN, getpid()), 0);
	EQ(fcntl(p[1], F_SETFL, O_ASYNC | O_NONBLOCK), 0);
	CHECK(fcntl(p[1], F_GETFL) & O_ASYNC);
	send_all(p[0], "io", 2);
	while (!got_io)
		sigsuspend(&old);
	EQ(recv(p[1], b, sizeof b, 0), 2);
	FAILS(recv(p[1], b, sizeof b, 0), EAGAIN);
	close(p[0]);
	close(p[1]);

	pair(p);
	int on = 1;
	static char big[200000], g[200000];
	for (int i = 0; i < (int)sizeof big; i++)
		big[i] = pat1(i, 3);
	EQ(setsockopt(p[0], SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on), 0);
	ssize_t n = send(p[0], big, 30000, MSG_ZEROCOPY);
	CHECK(n > 0);
	recv_all(p[1], g, n);
	CHECK(!memcmp(g, big, n));
	char ctl[100];
	struct msghdr m = { .msg_control = ctl, .msg_controllen = sizeof ctl };
	struct pollfd w = { p[0], 0, 0 };
	EQ(poll(&w, 1, -1), 1); // POLLERR: the notification
	EQ(recvmsg(p[0], &m, MSG_ERRQUEUE), 0);
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);
	CHECK(h);
	struct sock_extended_err *e = (void *)CMSG_DATA(h);
	EQ(e->ee_origin, SO_EE_ORIGIN_ZEROCOPY);
	return t_ok("urgent");
}
