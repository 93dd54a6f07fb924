// A blocking call that a handler with SA_RESTART interrupts goes on with what its number is then: closed (EBADF), or another
// file. What was sent before the signal is told first.
#include "t.h"
#include <sys/time.h>

enum does { CLOSES, OPENS, DUPLICATES, NOTHING };
static enum does does;
static int number, other[2];
static volatile int handled;

static void handler(int s)
{
	(void)s;
	if (handled++)
		return;
	switch (does) {
	case CLOSES: close(number); break;
	case OPENS: {
		close(number);
		int fd = socket(AF_UNIX, SOCK_STREAM, 0);
		if (fd != number) {
			dup2(fd, number);
			close(fd);
		}
		break;
	}
	case DUPLICATES: dup2(other[0], number); break;
	case NOTHING: break;
	}
}
static void soon(enum does what)
{
	struct itimerval t = { { 0, 0 }, { 0, 50000 } };
	does = what, handled = 0;
	EQ(setitimer(ITIMER_REAL, &t, NULL), 0);
}
static void over(void)
{
	CHECK(handled == 1);
	close(number);
}
static void accepts(void)
{
	int port, l;
	struct { enum does does; int error; } all[] = { { CLOSES, EBADF }, { OPENS, EINVAL } };
	for (unsigned i = 0; i < 2; i++) {
		number = l = listen_on(&port);
		soon(all[i].does);
		EQ(accept(l, NULL, NULL), -1);
		EQ(errno, all[i].error);
		over();
	}
	// The number leads to another listener, at which somebody waits.
	other[0] = listen_on(&port);
	int c = connect_to(port), unused;
	number = l = listen_on(&unused);
	soon(DUPLICATES);
	int s = accept(l, NULL, NULL);
	CHECK(s >= 0);
	over();
	close(c), close(s), close(other[0]);
}
static ssize_t by_msg(int fd, void *b, size_t n)
{
	struct iovec v = { b, n };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };
	return recvmsg(fd, &m, 0);
}
static ssize_t by_all(int fd, void *b, size_t n) { return recv(fd, b, n, MSG_WAITALL); }
static ssize_t by_peek(int fd, void *b, size_t n) { return recv(fd, b, n, MSG_PEEK); }
static ssize_t by_vector(int fd, void *b, size_t n) { return readv(fd, &(struct iovec){ b, n }, 1); }
static void reads(ssize_t (*call)(int, void *, size_t))
{
	char b[8] = "";
	int p[2];
	for (unsigned i = CLOSES; i <= OPENS; i++) {
		pair(p);
		number = p[1];
		soon(i);
		ssize_t n = call(number, b, 4);
		EQ(n, -1);
		CHECK(i == CLOSES ? errno == EBADF : errno == EINVAL);
		over();
		close(p[0]);
	}
	EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, other), 0);
	EQ(write(other[1], "unix", 4), 4);
	pair(p);
	number = p[1];
	soon(DUPLICATES);
	EQ(call(number, b, 4), 4);
	EQ(memcmp(b, "unix", 4), 0);
	over();
	close(p[0]), close(other[0]), close(other[1]);
}
static void writes(void)
{
	static char b[64 << 20];
	int p[2];
	pair(p);
	number = p[0];
	soon(CLOSES);
	ssize_t n = send(number, b, sizeof b, MSG_NOSIGNAL);
	CHECK(n > 0 && n < (ssize_t)sizeof b);
	over();
	close(p[1]);
	pair(p);
	number = p[0];
	nonblock(number);
	while (send(number, b, 1 << 16, MSG_NOSIGNAL) > 0)
		;
	EQ(errno, EAGAIN);
	EQ(fcntl(number, F_SETFL, 0), 0);
	soon(CLOSES);
	FAILS(send(number, b, 1 << 20, MSG_NOSIGNAL), EBADF);
	over();
	close(p[1]);
}
// A call is restarted as often as signals come, and not at all with a time-out of the socket.
static void many_times(void)
{
	struct itimerval t = { { 0, 200 }, { 0, 200 } }, none = { 0 };
	struct timeval limit = { 30, 0 };
	int p[2];
	char b[4];
	pair(p);
	number = -1, does = NOTHING, handled = 0;
	pid_t pid = fork_child();
	if (!pid) {
		usleep(300000);
		send_all(p[0], "abcd", 4);
		_exit(0);
	}
	EQ(setitimer(ITIMER_REAL, &t, NULL), 0);
	EQ(recv(p[1], b, 4, 0), 4);
	EQ(setitimer(ITIMER_REAL, &none, NULL), 0);
	CHECK(handled > 10);
	reap(pid);
	EQ(setsockopt(p[1], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
	soon(NOTHING);
	FAILS(recv(p[1], b, 4, 0), EINTR);
	close(p[0]), close(p[1]);
}
static void *ends(void *p)
{
	(void)p;
	sleep(t_limit());
	t_alarm(0);
	return NULL;
}
int main(void)
{
	pthread_t watch;
	struct sigaction sa = { .sa_handler = handler, .sa_flags = SA_RESTART };
	t_init();
	alarm(0);
	// A thread of its own is the test's time limit, since the timer's signal is this one's.
	sigset_t set, old;
	sigfillset(&set);
	pthread_sigmask(SIG_SETMASK, &set, &old);
	EQ(pthread_create(&watch, NULL, ends, NULL), 0);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	sigaction(SIGALRM, &sa, NULL);
	signal(SIGTERM, SIG_DFL);
	accepts();
	reads(read);
	reads(by_msg);
	reads(by_all);
	reads(by_peek);
	reads(by_vector);
	writes();
	many_times();
	return t_ok("restart_number");
}
