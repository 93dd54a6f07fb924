// A server and clients that send and receive while netacc_ctl does something to their processes. Every byte arrives once
// and in order, in both directions, on connections that exist all the time and on those that are made meanwhile.
#include "ctl.h"
enum { CONNS = 12, PIECE = 20000 };
static int port, lasting_only;
static void serve(int l) // echoes, by epoll
{
	int ep = epoll_create1(0);
	struct epoll_event ev = { .events = EPOLLIN, .data.fd = l };
	nonblock(l);
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, l, &ev), 0);
	static char b[65536];
	for (;;) {
		EQ(epoll_wait(ep, &ev, 1, -1), 1);
		if (ev.data.fd == l) {
			int c = accept(l, NULL, NULL);
			if (c < 0)
				continue;
			ev = (struct epoll_event){ .events = EPOLLIN, .data.fd = c };
			EQ(epoll_ctl(ep, EPOLL_CTL_ADD, c, &ev), 0);
			continue;
		}
		ssize_t n = recv(ev.data.fd, b, sizeof b, 0);
		if (n <= 0)
			close(ev.data.fd);
		else
			send_all(ev.data.fd, b, n);
	}
}
static volatile int stop;
static void exchange(int fd, uint64_t *at, unsigned key)
{
	unsigned char b[PIECE], back[PIECE];
	size_t n = *at * 7919 % PIECE + 1;
	pat_fill(b, n, *at, key);
	send_all(fd, b, n);
	recv_all(fd, back, n);
	pat_check(back, n, *at, key);
	*at += n;
}
static void *client(void *x)
{
	unsigned key = (unsigned)(uintptr_t)x;
	int fd = connect_to(port);
	uint64_t at = 0, other = 0;
	while (!stop) {
		exchange(fd, &at, key);
		if (lasting_only)
			continue;
		int more = connect_to(port);
		other = 0;
		exchange(more, &other, key + 100);
		close(more);
	}
	exchange(fd, &at, key);
	close(fd);
	return NULL;
}
// Calls `disturb` with the numbers of the server's and the clients' process, while there is traffic.
static void traffic(void (*disturb)(pid_t server, pid_t clients))
{
	int l = listen_on(&port);
	pid_t server = fork_child();
	if (!server) {
		serve(l);
		_exit(1);
	}
	close(l);
	pthread_t t[CONNS];
	for (uintptr_t i = 0; i < CONNS; i++)
		CHECK(!pthread_create(&t[i], NULL, client, (void *)i));
	disturb(server, getpid());
	stop = 1;
	for (int i = 0; i < CONNS; i++)
		pthread_join(t[i], NULL);
	kill(server, SIGKILL);
	reap_killed(server);
}
