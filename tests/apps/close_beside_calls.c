// Calls on a descriptor that another thread closes at the same moment, or replaces by another connection, reach a
// connection or get EBADF, whether the connection belongs to one process or is shared with a child. No byte is lost or
// added.
#include "t.h"
#include <stdatomic.h>
enum { NUMBER = 300 };
static int a[2], b[2];
static atomic_int turn, done, stop, over;
static long sent, got[2];
static void call(int how)
{
	ssize_t r = how & 1 ? write(NUMBER, "x", 1) : send(NUMBER, "x", 1, 0);
	if (r == 1)
		sent++;
	else if (errno != EBADF && errno != EAGAIN)
		die("a write");
}
static int is_closed(void)
{
	char c;
	ssize_t r = recv(NUMBER, &c, 1, 0);
	if (r != -1 || (errno != EBADF && errno != EAGAIN))
		die("recv gives %zd", r);
	int closed = errno == EBADF;
	struct pollfd p = { NUMBER, POLLIN, 0 };
	if (poll(&p, 1, 0) < 0 || (p.revents & ~POLLNVAL))
		die("poll gives %x", p.revents);
	return closed;
}
// Once in each turn until the number is closed, or another turn begins.
static void *caller(void *x)
{
	for (int mine = 0; !stop; mine = done = turn) {
		while (turn == mine && !stop)
			sched_yield();
		for (int t = turn; turn == t && !stop; call(t))
			if (is_closed() && !over)
				break;
	}
	return x;
}
static void drain(int fd, long *n)
{
	char buf[4096];
	ssize_t r;
	while ((r = recv(fd, buf, sizeof buf, MSG_DONTWAIT)) > 0)
		*n += r;
	if (r == 0 || errno != EAGAIN)
		die("the other end reads %zd", r);
}
static void rounds(int n, int with_other)
{
	over = with_other;
	for (int i = 0; i < n; i++) {
		EQ(dup2(a[0], NUMBER), NUMBER);
		turn++;
		for (int k = 0; k < i % 8; k++)
			sched_yield();
		if (with_other) {
			EQ(dup2(b[0], NUMBER), NUMBER);
		} else {
			EQ(close(NUMBER), 0);
			while (done != turn)
				sched_yield();
		}
		drain(a[1], &got[0]);
		drain(b[1], &got[1]);
	}
	over = 0;
	close(NUMBER);
	while (done != turn)
		sched_yield();
}
int main(void)
{
	t_init();
	signal(SIGPIPE, SIG_DFL);
	pair(a);
	pair(b);
	fcntl(a[0], F_SETFL, O_NONBLOCK);
	fcntl(b[0], F_SETFL, O_NONBLOCK);
	pthread_t t;
	pthread_create(&t, NULL, caller, NULL);
	rounds(150, 0);
	rounds(150, 1);
	int hold[2];
	EQ(pipe(hold), 0);
	pid_t c = fork();
	if (!c) {
		char x;
		close(hold[1]);
		(void)!read(hold[0], &x, 1);
		_exit(0);
	}
	rounds(150, 0);
	rounds(150, 1);
	stop = 1;
	pthread_join(t, NULL);
	drain(a[1], &got[0]);
	drain(b[1], &got[1]);
	EQ(got[0] + got[1], sent);
	close(hold[1]);
	EQ(waitpid(c, NULL, 0), c);
	return t_ok("close_beside_calls");
}
