// Timers, pipes and eventfds in the same epoll set are not starved by busy sockets, nor are they in poll and select.
#include "t.h"
static int p[2], stop;
static void *pump(void *x) // keeps p[0] readable all the time
{
	(void)x;
	char b[4096];
	memset(b, 1, sizeof b);
	while (!__atomic_load_n(&stop, __ATOMIC_SEQ_CST))
		if (send(p[1], b, sizeof b, MSG_NOSIGNAL) < 0)
			break;
	return NULL;
}
int main(void)
{
	t_init();
	int ep = epoll_create1(0), tf = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK), ef = eventfd(0, EFD_NONBLOCK), pi[2];
	EQ(pipe(pi), 0);
	pair(p);
	int fds[4] = { p[0], tf, ef, pi[0] };
	for (int i = 0; i < 4; i++) {
		struct epoll_event e = { EPOLLIN, { .u32 = i } };
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fds[i], &e), 0);
	}
	struct itimerspec its = { { 0, 5000000 }, { 0, 5000000 } };
	EQ(timerfd_settime(tf, 0, &its, NULL), 0);
	pthread_t t;
	pthread_create(&t, NULL, pump, NULL);
	for (int mode = 0; mode < 3; mode++) {
		int ticks = 0, sock = 0, evs = 0, pipes = 0;
		double t0 = now(), worst = 0, sent = 0;
		char b[512];
		uint64_t u;
		// Until all of them have had their turns: the writer of the socket may come late to a CPU.
		while (ticks < 40 || evs < 20 || pipes < 20 || sock <= 20) {
			int got[4] = { 0 };
			if (!sent) {
				u = 1;
				CHECK(write(ef, &u, 8) == 8 && write(pi[1], "x", 1) == 1);
				sent = now();
			}
			if (mode == 0) {
				struct epoll_event ev[1]; // room for one only: fairness
				int n = epoll_wait(ep, ev, 1, 1000);
				CHECK(n == 1);
				got[ev[0].data.u32] = 1;
			} else if (mode == 1) {
				struct pollfd pf[4];
				for (int i = 0; i < 4; i++)
					pf[i] = (struct pollfd){ fds[i], POLLIN, 0 };
				CHECK(poll(pf, 4, 1000) > 0);
				for (int i = 0; i < 4; i++)
					got[i] = !!pf[i].revents;
			} else {
				fd_set r;
				FD_ZERO(&r);
				int top = 0;
				for (int i = 0; i < 4; i++) {
					FD_SET(fds[i], &r);
					top = fds[i] > top ? fds[i] : top;
				}
				CHECK(select(top + 1, &r, NULL, NULL, NULL) > 0);
				for (int i = 0; i < 4; i++)
					got[i] = FD_ISSET(fds[i], &r);
			}
			if (got[0])
				sock += recv(p[0], b, sizeof b, MSG_DONTWAIT) > 0;
			if (got[1] && read(tf, &u, 8) == 8)
				ticks += u;
			if (got[2] && read(ef, &u, 8) == 8) {
				evs++;
				if (now() - sent > worst)
					worst = now() - sent;
			}
			if (got[3] && read(pi[0], b, 1) == 1) {
				pipes++;
				sent = 0;
			}
			if (now() - t0 > 8)
				die("starved in mode %d: %d ticks, %d eventfd, %d pipe, %d socket events", mode, ticks, evs, pipes, sock);
		}
		if (worst > 1)
			die("mode %d: an eventfd waited %.3f s", mode, worst);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
	shutdown(p[1], SHUT_RDWR);
	shutdown(p[0], SHUT_RDWR);
	close(p[0]);
	pthread_join(t, NULL);
	return t_ok("epoll_foreign");
}
