// A signal handler can close connections and a listener, whatever the thread is doing with other sockets at that
// moment.
#include "t.h"
#include <sys/epoll.h>
#include <sys/time.h>
enum { VICTIMS = 200 };
static int victim[VICTIMS], peer[VICTIMS], extra;
static volatile sig_atomic_t next_one, failed;
static void handler(int s)
{
	(void)s;
	int e = errno, i = next_one;
	if (i < VICTIMS) {
		if (close(victim[i]) != 0)
			failed = 1;
		next_one = i + 1;
	} else if (i == VICTIMS) {
		if (close(extra) != 0)
			failed = 1;
		next_one = i + 1;
	}
	errno = e;
}
int main(void)
{
	t_init();
	int port, l = listen_n(1000, &port), port2;
	extra = listen_on(&port2);
	for (int i = 0; i < VICTIMS; i++) {
		victim[i] = connect_to(port);
		peer[i] = accept(l, NULL, NULL);
		CHECK(peer[i] >= 0);
	}
	struct sigaction sa = { .sa_handler = handler, .sa_flags = SA_RESTART };
	EQ(sigaction(SIGPROF, &sa, NULL), 0);
	struct itimerval every = { { 0, 300 }, { 0, 300 } };
	EQ(setitimer(ITIMER_PROF, &every, NULL), 0);
	long rounds = 0;
	while (next_one <= VICTIMS) { // the calls that a handler may interrupt
		int e = epoll_create1(0), c = connect_to(port), s = accept(l, NULL, NULL);
		struct epoll_event ev = { EPOLLIN, { .fd = s } };
		CHECK(c >= 0 && s >= 0);
		EQ(epoll_ctl(e, EPOLL_CTL_ADD, s, &ev), 0);
		for (int k = 0; k < 5; k++) {
			char b[100] = { 1 };
			send_all(c, b, sizeof b);
			int n;
			while ((n = epoll_wait(e, &ev, 1, -1)) < 0)
				EQ(errno, EINTR);
			EQ(n, 1);
			recv_all(s, b, sizeof b);
		}
		int order = rounds++ % 3;
		close(order == 0 ? e : order == 1 ? c : s);
		close(order == 0 ? c : order == 1 ? s : e);
		close(order == 0 ? s : order == 1 ? e : c);
	}
	EQ(setitimer(ITIMER_PROF, &(struct itimerval){ 0 }, NULL), 0);
	EQ(failed, 0);
	for (int i = 0; i < VICTIMS; i++) {
		char b;
		struct pollfd p = { peer[i], POLLIN, 0 }; // what is closed late is closed by now
		EQ(poll(&p, 1, -1), 1);
		EQ(recv(peer[i], &b, 1, 0), 0);
		EQ(fcntl(victim[i], F_GETFD), -1);
		EQ(errno, EBADF);
		close(peer[i]);
	}
	int c = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in a = addr4(port2);
	EQ(connect(c, (struct sockaddr *)&a, sizeof a), -1);
	EQ(errno, ECONNREFUSED);
	return t_ok("handler_close");
}
