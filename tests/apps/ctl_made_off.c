// What a program does while an operator has switched it off, and goes on with when it is on again: it makes a listener, limits
// the time of its calls, sleeps in accept while another thread closes the number and opens another file under it, and
// is interrupted by signals whose handler restarts calls.
#include "ctl.h"
static int l, port, res;
static volatile int over;
static void *acceptor(void *x)
{
	no_sigchld();
	*(volatile pid_t *)x = gettid();
	res = accept(l, NULL, NULL);
	return NULL;
}
static pthread_t asleep(void)
{
	volatile pid_t tid = 0;
	pthread_t t;
	CHECK(!pthread_create(&t, NULL, acceptor, (void *)&tid));
	while (!tid)
		usleep(100);
	let_it_block(getpid(), tid);
	return t;
}
// The time-out is set while the kernel alone has the listener.
static void time_out(void)
{
	struct timeval tv = { 0, 100000 };
	ctl_ask("off", getpid());
	l = listen_on(&port);
	EQ(setsockopt(l, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv), 0);
	double begun = now();
	FAILS(accept(l, NULL, NULL), EAGAIN);
	CHECK(now() - begun > 0.09);
	ctl_ask("on", getpid());
	begun = now();
	FAILS(accept(l, NULL, NULL), EAGAIN);
	CHECK(now() - begun > 0.09);
	close(l);
}
static void number(void)
{
	ctl_ask("off", getpid());
	l = listen_on(&port);
	pthread_t t = asleep();
	EQ(close(l), 0);
	int c = connect_to(port);
	EQ(c, l); // the number is another connection's
	ctl_ask("on", getpid());
	pthread_join(t, NULL);
	if (res < 0)
		die("the accept that slept on has failed");
	send_all(c, "x", 1);
	char b;
	recv_all(res, &b, 1);
	close(c), close(res);
}
// A listener that is registered with epoll at that time reports the clients that come later.
static void registered(void)
{
	struct epoll_event ev = { EPOLLIN | EPOLLET, { 0 } };
	int ep = epoll_create1(0);
	ctl_ask("off", getpid());
	l = listen_on(&port);
	nonblock(l);
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, l, &ev), 0);
	EQ(epoll_wait(ep, &ev, 1, 0), 0);
	ctl_ask("on", getpid());
	FAILS(accept(l, NULL, NULL), EAGAIN);
	int c = connect_to(port);
	EQ(epoll_wait(ep, &ev, 1, 20000), 1);
	res = accept(l, NULL, NULL);
	CHECK(res >= 0);
	expect_shm(res);
	close(c), close(res), close(l), close(ep);
}
static void handler(int s) { (void)s; }
static void *sends(void *to)
{
	for (double end = now() + 1; now() < end;)
		pthread_kill(*(pthread_t *)to, SIGUSR1), usleep(20);
	over = 1;
	return to;
}
static void restarts(void)
{
	struct sigaction sa = { .sa_handler = handler, .sa_flags = SA_RESTART };
	int p[2];
	pthread_t self = pthread_self(), t;
	char b;
	pair(p);
	send_all(p[0], "1", 1);
	recv_all(p[1], &b, 1);
	ctl_ask("off", getpid());
	EQ(sigaction(SIGUSR1, &sa, NULL), 0);
	CHECK(!pthread_create(&t, NULL, sends, &self));
	while (!over) {
		EQ(send(p[0], "x", 1, 0), 1);
		EQ(recv(p[1], &b, 1, 0), 1);
	}
	pthread_join(t, NULL);
	ctl_ask("on", getpid());
	close(p[0]), close(p[1]);
}
int main(void)
{
	t_init();
	// A socket of ours is there from the beginning.
	int other, first = listen_on(&other);
	for (int i = 0; i < 5; i++) {
		time_out();
		number();
		registered();
	}
	restarts();
	close(first);
	return t_ok("ctl_made_off");
}
