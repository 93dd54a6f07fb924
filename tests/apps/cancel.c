// pthread_cancel ends a thread that sleeps in a call on a connection, unless the thread has disabled cancellation.
#include "t.h"
static int p[2], l, ep, how;
static volatile pid_t tid;
static volatile int stays;
static void *sleeper(void *x)
{
	static char big[1 << 20];
	char c = 0;
	struct epoll_event e;
	struct pollfd f = { p[0], POLLIN, 0 };
	fd_set s;
	struct iovec v = { &c, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };
	(void)x;
	if (stays)
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	tid = gettid();
	FD_ZERO(&s);
	FD_SET(p[0], &s);
	long r;
	do {
		switch (how) {
		case 0: r = recv(p[0], &c, 1, 0); break;
		case 1: r = poll(&f, 1, -1); break;
		case 2: r = epoll_wait(ep, &e, 1, -1); break;
		case 3: r = accept(l, NULL, NULL); break;
		case 4: r = select(p[0] + 1, &s, NULL, NULL, NULL); break;
		case 6: r = recvmsg(p[0], &m, 0); break;
		default:
			do
				r = send(p[0], big, sizeof big, 0);
			while (r > 0);
		}
	} while (r < 0 && errno == EINTR);
	EQ(r, 1);
	return x;
}
static void start(pthread_t *t)
{
	tid = 0;
	EQ(pthread_create(t, NULL, sleeper, p), 0);
	while (!tid)
		sched_yield();
	let_it_block(getpid(), tid);
}
int main(void)
{
	t_init();
	int port;
	pthread_t t;
	void *end;
	l = listen_on(&port);
	for (how = 0; how < 7; how++) {
		p[0] = connect_to(port);
		p[1] = accept(l, NULL, NULL);
		ep = epoll_create1(0);
		struct epoll_event e = { .events = EPOLLIN };
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, p[0], &e), 0);
		for (int i = 0; how == 5 && i < 40; i++) { // what began on TCP goes over first
			char c;
			send_all(p[i & 1], "w", 1);
			recv_all(p[!(i & 1)], &c, 1);
		}
		if (how < 3) {
			stays = 1;
			start(&t);
			EQ(pthread_cancel(t), 0);
			send_all(p[1], "x", 1);
			EQ(pthread_join(t, &end), 0);
			CHECK(end == p);
			char c;
			if (how)
				recv_all(p[0], &c, 1);
			stays = 0;
		}
		for (int i = 0; i < 3; i++) { // mostly the same pthread_t again
			start(&t);
			EQ(pthread_cancel(t), 0);
			EQ(pthread_join(t, &end), 0);
			CHECK(end == PTHREAD_CANCELED);
		}
		// The next thread, which may have the same name, is not cancelled.
		if (how < 3) {
			start(&t);
			send_all(p[1], "x", 1);
			EQ(pthread_join(t, &end), 0);
			CHECK(end == p);
		}
		close(p[0]);
		close(p[1]);
		close(ep);
	}
	return t_ok("cancel");
}
