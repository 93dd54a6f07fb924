// A handler leaves a call by siglongjmp: each kind of call while it sleeps, with and without SA_RESTART, and busy calls at any
// instruction. The sockets go on working, and a close reaches the peer at once.
#include "t.h"
#include <setjmp.h>
#include <sys/time.h>
enum { RECV, SEND, ACCEPT, CONNECT, POLL, PPOLL, SELECT, EPOLL, EPOLL_PLAIN, READ_ALL, KINDS };
static const char *NAME[] = { "recv", "send", "accept", "connect", "poll", "ppoll", "select", "epoll_wait", "epoll_wait of a pipe", "MSG_WAITALL" };
static sigjmp_buf out;
static volatile int armed, jumps;
static void on_timer(int s)
{
	(void)s;
	if (!armed)
		return;
	armed = 0;
	jumps++;
	siglongjmp(out, 1);
}
static void in_us(long us)
{
	struct itimerval t = { { 0, 0 }, { us / 1000000, us % 1000000 } };
	EQ(setitimer(ITIMER_REAL, &t, NULL), 0);
}
static void works(int p[2])
{
	char b[8] = "";
	send_all(p[0], "ping", 4);
	recv_all(p[1], b, 4);
	EQ(memcmp(b, "ping", 4), 0);
	send_all(p[1], "pong", 4);
	recv_all(p[0], b, 4);
	EQ(memcmp(b, "pong", 4), 0);
}
static void ends(int p[2])
{
	char b;
	close(p[0]);
	if (!ready(p[1], POLLIN, 2000 * patience()))
		die("the peer hears nothing of the close");
	EQ(recv(p[1], &b, 1, 0), 0);
	close(p[1]);
}
// A listener whose queue is full, so that a connect waits.
static __attribute__((noinline)) int full_listener(struct sockaddr_in *a)
{
	int l = listen_n(0, &(int){ 0 });
	*a = addr4(port_of(l));
	for (int i = 0; i < 20; i++) {
		int c = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		connect(c, (struct sockaddr *)a, sizeof *a);
		if (!ready(c, POLLOUT, 60))
			break;
	}
	return l;
}
static void sleeps(int kind, int flags)
{
	static char big[1 << 20];
	struct sigaction sa = { .sa_handler = on_timer, .sa_flags = flags };
	struct sockaddr_in a;
	sigset_t none, timer;
	int p[2], pipes[2], port, l = listen_on(&port), s = socket(AF_INET, SOCK_STREAM, 0), ep = epoll_create1(0);
	int full = kind == CONNECT ? full_listener(&a) : -1;
	EQ(sigaction(SIGALRM, &sa, NULL), 0);
	sigemptyset(&none);
	sigemptyset(&timer);
	sigaddset(&timer, SIGALRM);
	pair(p);
	works(p);
	EQ(pipe(pipes), 0);
	struct epoll_event ev = { EPOLLIN, { 0 } };
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, kind == EPOLL_PLAIN ? pipes[0] : p[0], &ev), 0);
	struct pollfd pf = { p[0], POLLIN, 0 };
	fd_set r;
	FD_ZERO(&r);
	FD_SET(p[0], &r);
	if (kind == READ_ALL)
		send_all(p[1], "part", 4);
	if (kind == PPOLL)
		pthread_sigmask(SIG_BLOCK, &timer, NULL);
	int before = jumps;
	if (!sigsetjmp(out, 1)) {
		armed = 1;
		in_us(20000);
		switch (kind) {
		case RECV: recv(p[0], big, 8, 0); break;
		case SEND: while (send(p[0], big, sizeof big, 0) > 0); break;
		case ACCEPT: accept(l, NULL, NULL); break;
		case CONNECT: connect(s, (struct sockaddr *)&a, sizeof a); break;
		case POLL: poll(&pf, 1, -1); break;
		case PPOLL: ppoll(&pf, 1, NULL, &none); break;
		case SELECT: select(p[0] + 1, &r, NULL, NULL, NULL); break;
		case EPOLL: case EPOLL_PLAIN: epoll_wait(ep, &ev, 1, -1); break;
		case READ_ALL: recv(p[0], big, 8, MSG_WAITALL); break;
		}
		die("%s has returned (flags %x)", NAME[kind], flags);
	}
	EQ(jumps, before + 1);
	pthread_sigmask(SIG_UNBLOCK, &timer, NULL);
	if (kind == SEND) {
		abortive(p[0]);
		close(p[0]);
		close(p[1]);
	} else if (kind != READ_ALL) {
		works(p);
		ends(p);
	} else {
		close(p[1]);
		close(p[0]);
	}
	// the listener serves as before
	int c = connect_to(port), d = accept(l, NULL, NULL);
	CHECK(d >= 0);
	close(c), close(d), close(l), close(s), close(ep), close(pipes[0]), close(pipes[1]);
	if (full >= 0)
		close(full);
}
static void busy(int kind, int rounds)
{
	int p[2], ep = epoll_create1(0);
	unsigned seed = 7 + kind;
	struct sigaction sa = { .sa_handler = on_timer };
	EQ(sigaction(SIGALRM, &sa, NULL), 0);
	pair(p);
	nonblock(p[0]), nonblock(p[1]);
	struct epoll_event ev = { EPOLLIN, { 0 } };
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, p[1], &ev), 0);
	double limit = now() + 20 * patience();
	for (volatile int i = 0; i < rounds; i++) {
		if (now() > limit)
			die("only %d rounds", i);
		if (sigsetjmp(out, 1))
			continue;
		armed = 1;
		in_us(1 + rand_r(&seed) % 80);
		for (;;) {
			char b[1500];
			struct pollfd f[2] = { { p[0], POLLIN | POLLOUT, 0 }, { p[1], POLLIN, 0 } };
			send(p[0], b, 1 + rand_r(&seed) % sizeof b, MSG_NOSIGNAL);
			if (kind == POLL)
				poll(f, 2, 0);
			if (kind == EPOLL)
				epoll_wait(ep, &ev, 1, 0);
			recv(p[1], b, sizeof b, 0);
		}
	}
	in_us(0);
	armed = 0;
	// what is on its way while the connection changes its path comes after a call at each end
	static char rest[1 << 20];
	for (int quiet = 0; quiet < 5; quiet++) {
		ready(p[0], POLLIN, 0);
		while (recv(p[1], rest, sizeof rest, 0) > 0 || ready(p[1], POLLIN, 20))
			quiet = 0;
	}
	for (int i = 0; i < 2; i++)
		EQ(fcntl(p[i], F_SETFL, fcntl(p[i], F_GETFL) & ~O_NONBLOCK), 0);
	works(p);
	ends(p);
	close(ep);
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
	for (int kind = 0; kind < KINDS; kind++) {
		sleeps(kind, 0);
		sleeps(kind, SA_RESTART);
	}
	busy(RECV, 3000);
	busy(POLL, 2000);
	busy(EPOLL, 2000);
	return t_ok("jump_out");
}
