// A handler forks at any instruction of calls on accelerated sockets. The child uses a connection of its own and ends; parent
// and child find no lock held.
#include "t.h"
#include <sys/time.h>
static int own[2];
static volatile int children, due;
static void on_timer(int s)
{
	(void)s;
	int e = errno, st = 0;
	if (due++ % 40) {
		errno = e;
		return;
	}
	pid_t c = fork();
	if (!c) {
		signal(SIGALRM, t_alarm);
		alarm(10 * patience());
		_exit(send(own[0], "k", 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1 ? 0 : 9);
	}
	if (c > 0) {
		while (waitpid(c, &st, 0) < 0 && errno == EINTR)
			;
		if (st)
			die("a child ended with status %x", st);
		children++;
	}
	errno = e;
}
// The timer that t_init starts is the one that this program needs.
static void *watch(void *x)
{
	sleep(t_limit());
	t_alarm(SIGALRM);
	return x;
}
int main(void)
{
	t_init();
	alarm(0);
	sigset_t all, before;
	pthread_t watcher;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	EQ(pthread_create(&watcher, NULL, watch, NULL), 0);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	int p[2];
	unsigned seed = 3;
	unsigned char c = 0;
	pair(p);
	pair(own);
	struct sigaction sa = { .sa_handler = on_timer, .sa_flags = SA_RESTART };
	EQ(sigaction(SIGALRM, &sa, NULL), 0);
	double limit = now() + 40 * patience();
	while (children < 150) {
		if (now() > limit)
			die("only %d children", children);
		struct itimerval t = { { 0, 150 }, { 0, 20 + rand_r(&seed) % 100 } };
		EQ(setitimer(ITIMER_REAL, &t, NULL), 0);
		for (int i = 0; i < 2000; i++, c++) {
			unsigned char got;
			EQ(send(p[0], &c, 1, 0), 1);
			EQ(recv(p[1], &got, 1, 0), 1);
			EQ(got, c);
		}
		char rest[256];
		while (recv(own[1], rest, sizeof rest, MSG_DONTWAIT) > 0)
			;
	}
	return t_ok("fork_anywhere");
}
