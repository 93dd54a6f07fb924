// A thread that is cancelled at any moment, also when it is just about to sleep, ends, and the library goes on.
#include "t.h"

#define ROUNDS 1500
static int p[2], l, ep, how;
static volatile int begun;

static void *works(void *x)
{
	char c;
	struct pollfd f = { p[0], POLLIN, 0 };
	struct epoll_event e;
	begun = 1;
	for (;;)
		switch (how) {
		case 0: recv(p[0], &c, 1, 0); break;
		case 1: poll(&f, 1, -1); break;
		case 2: epoll_wait(ep, &e, 1, -1); break;
		default: accept(l, NULL, NULL);
		}
	return x;
}

int main(void)
{
	t_init();
	int port;
	unsigned x = getpid();
	l = listen_on(&port);
	p[0] = connect_to(port);
	p[1] = accept(l, NULL, NULL);
	ep = epoll_create1(0);
	struct epoll_event e = { .events = EPOLLIN };
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, p[0], &e), 0);
	for (int round = 0; round < ROUNDS; round++) {
		pthread_t t;
		void *end;
		how = round % 4;
		begun = 0;
		EQ(pthread_create(&t, NULL, works, NULL), 0);
		while (!begun)
			sched_yield();
		x = x * 1103515245 + 12345;
		for (volatile int n = (x >> 16) % 3000; n; n--)
			;
		EQ(pthread_cancel(t), 0);
		EQ(pthread_join(t, &end), 0);
		CHECK(end == PTHREAD_CANCELED);
	}
	char c;
	send_all(p[1], "x", 1);
	recv_all(p[0], &c, 1);
	expect_shm(p[0]);
	return t_ok("cancel_storm");
}
