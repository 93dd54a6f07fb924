// A signal that comes while a waiting call lets other threads run ends that call, as one does that comes while it sleeps. Two
// threads share a CPU: the second one runs only while the first one waits, and sends its signal then.
#include "t.h"
#include <sched.h>
enum { ROUNDS = 40 };
static int p[2], ep;
static pthread_t waiter;
// The number of the call that is being made, or 0.
static volatile int in_call;
static volatile int handled, end;
static void on(int s) { (void)s; handled++; }
static int by_recv(void)
{
	char b;
	return recv(p[0], &b, 1, 0);
}
static int by_poll(void)
{
	struct pollfd f = { p[0], POLLIN, 0 };
	return poll(&f, 1, -1);
}
static int by_select(void)
{
	fd_set r;
	FD_ZERO(&r);
	FD_SET(p[0], &r);
	return select(p[0] + 1, &r, NULL, NULL, NULL);
}
static int by_epoll(void)
{
	struct epoll_event ev;
	return epoll_wait(ep, &ev, 1, -1);
}
static void only_one_cpu(void)
{
	cpu_set_t all, one;
	int cpu = 0;
	EQ(sched_getaffinity(0, sizeof all, &all), 0);
	while (!CPU_ISSET(cpu, &all))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	EQ(sched_setaffinity(0, sizeof one, &one), 0);
}
// Sends a signal for each call, and a byte if that did not end it.
static void *sends(void *arg)
{
	int done = 0;
	while (!end) {
		int call = in_call;
		if (!call || call == done) {
			sched_yield();
			continue;
		}
		EQ(pthread_kill(waiter, SIGUSR1), 0);
		for (double limit = now() + 0.1 * patience(); in_call == call && now() < limit;)
			sched_yield();
		if (in_call == call)
			send_all(p[1], "x", 1);
		done = call;
	}
	return arg;
}
static void check(const char *name, int (*call)(void))
{
	static int calls;
	int lost = 0;
	for (int i = 0; i < ROUNDS; i++) {
		int before = handled;
		in_call = ++calls;
		int r = call(), e = errno;
		in_call = 0;
		char b;
		if (r < 0)
			EQ(e, EINTR);
		else if (call != by_recv)
			recv_all(p[0], &b, 1);
		while (handled == before)
			sched_yield();
		lost += r >= 0;
	}
	// A signal may also come before the call has begun, which no kernel can notice.
	if (lost > ROUNDS / 4)
		die("%d of %d signals did not end %s", lost, ROUNDS, name);
}
int main(void)
{
	t_init();
	only_one_cpu();
	pair(p);
	send_all(p[1], "1", 1);
	char b;
	recv_all(p[0], &b, 1);
	ep = epoll_create1(0);
	struct epoll_event ev = { EPOLLIN, { .fd = p[0] } };
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, p[0], &ev), 0);
	struct sigaction sa = { .sa_handler = on };
	EQ(sigaction(SIGUSR1, &sa, NULL), 0);
	waiter = pthread_self();
	pthread_t other;
	EQ(pthread_create(&other, NULL, sends, NULL), 0);
	check("recv", by_recv);
	check("poll", by_poll);
	check("select", by_select);
	check("epoll_wait", by_epoll);
	end = 1;
	pthread_join(other, NULL);
	return t_ok("signal_in_yield");
}
