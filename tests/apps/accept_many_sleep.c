// Several threads sleep on one listener, in accept, poll and epoll_wait, while clients come and end: whichever thread notices
// the end first, the others go on, and every client is served.
#include "t.h"
enum { EACH = 3, CLIENTS = 600, AT_ONCE = 6 };
static int l, served, over;
static void serve(void)
{
	int c = accept(l, NULL, NULL);
	if (c < 0) {
		CHECK(errno == EAGAIN);
		return;
	}
	char b;
	EQ(recv(c, &b, 1, 0), 1);
	send_all(c, &b, 1);
	__atomic_add_fetch(&served, 1, __ATOMIC_RELAXED);
	close(c);
}
static void *polls(void *unused)
{
	while (!__atomic_load_n(&over, __ATOMIC_RELAXED))
		if (ready(l, POLLIN, 50))
			serve();
	return unused;
}
static void *epolls(void *unused)
{
	int ep = epoll_create1(0);
	struct epoll_event ev = { .events = EPOLLIN }, got;
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, l, &ev), 0);
	while (!__atomic_load_n(&over, __ATOMIC_RELAXED))
		if (epoll_wait(ep, &got, 1, 50) == 1)
			serve();
	close(ep);
	return unused;
}
int main(void)
{
	t_init();
	int port;
	l = nonblock(listen_on(&port));
	pthread_t t[2 * EACH];
	for (int i = 0; i < 2 * EACH; i++)
		CHECK(!pthread_create(&t[i], NULL, i % 2 ? polls : epolls, NULL));
	pid_t running[AT_ONCE];
	for (int i = 0; i < CLIENTS + AT_ONCE; i++) {
		if (i >= AT_ONCE)
			reap(running[i % AT_ONCE]);
		if (i >= CLIENTS)
			continue;
		pid_t p = running[i % AT_ONCE] = fork_child();
		if (!p) {
			char b = 'x';
			int fd = connect_to(port);
			send_all(fd, &b, 1);
			recv_all(fd, &b, 1);
			_exit(0);
		}
	}
	__atomic_store_n(&over, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < 2 * EACH; i++)
		pthread_join(t[i], NULL);
	EQ(served, CLIENTS);
	close(l);
	return t_ok("accept_many_sleep");
}
