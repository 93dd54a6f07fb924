// After a signal recv, send, accept and connect restart with SA_RESTART and fail with EINTR without it. poll, select,
// epoll_wait and a recv with SO_RCVTIMEO never restart. ppoll, pselect and epoll_pwait apply their mask only during the
// call. The same holds of a handler that was installed past libc.
#include "t.h"
#include <sys/syscall.h>
static volatile int hits, go;
static int p[2], l, port, full;
static pthread_t mainth;
static pid_t maintid;
static void on_usr(int s) { (void)s; hits++; }
enum { RECV, READ, RECVMSG, SEND, ACCEPT, CONNECT, RECV_TIMEO, POLL, PPOLL, SELECT, PSELECT, EPOLL, EPOLL_PWAIT, KINDS };
static const char *NAME[] = { "recv", "read", "recvmsg", "send", "accept", "connect", "recv with SO_RCVTIMEO", "poll", "ppoll", "select",
			      "pselect", "epoll_wait", "epoll_pwait" };
// What the kernel calls a struct sigaction.
struct kernel_action {
	void (*handler)(int);
	unsigned long flags;
	void (*restorer)(void);
	unsigned long mask;
};
#ifdef __x86_64__
enum { RESTORER = 0x04000000 };
void returns(void);
__asm__(".globl returns\nreturns:\nmov $15, %eax\nsyscall\n"); // rt_sigreturn(2)
#else
enum { RESTORER = 0 };
static void (*const returns)(void) = NULL;
#endif
static void install(int restart, int raw)
{
	int flags = restart ? SA_RESTART : 0;
	struct sigaction sa = { .sa_handler = on_usr, .sa_flags = flags };
	struct kernel_action action = { on_usr, flags | RESTORER, returns, 0 };
	if (raw)
		EQ(syscall(SYS_rt_sigaction, SIGUSR1, &action, NULL, 8), 0);
	else
		EQ(sigaction(SIGUSR1, &sa, NULL), 0);
}
static void *helper(void *x)
{
	int kind = (int)(long)x & 255, restart = (int)(long)x >> 8;
	let_it_block(getpid(), maintid);
	// signals until the call came back (it can have been outside the kernel at the first ones), or for 30 ms if it restarts
	double end = now() + 0.03;
	while (__atomic_load_n(&go, __ATOMIC_SEQ_CST) && (!restart || now() < end)) {
		pthread_kill(mainth, SIGUSR1);
		usleep(3000);
	}
	if (!restart)
		return NULL;
	static char b[1 << 16];
	switch (kind) { // now the event that it waits for
	case RECV: case READ: case RECVMSG: send_all(p[1], "done", 4); break;
	case SEND: while (__atomic_load_n(&go, __ATOMIC_SEQ_CST)) recv(p[1], b, sizeof b, MSG_DONTWAIT); break;
	case ACCEPT: connect_to(port); break;
	case CONNECT: while (__atomic_load_n(&go, __ATOMIC_SEQ_CST)) {
			struct pollfd pf = { full, POLLIN, 0 };
			if (poll(&pf, 1, 50) > 0)
				accept(full, NULL, NULL);
		}
	}
	return NULL;
}
static void fill(int fd)
{
	static char b[1 << 16];
	for (int quiet = 0; quiet < 5;) {
		quiet++;
		while (send(fd, b, sizeof b, MSG_DONTWAIT) > 0)
			quiet = 0;
		usleep(1000);
	}
}
static void run(int kind, int restart, int raw)
{
	struct sockaddr_in a = addr4(port);
	char b[8];
	static char big[100000];
	struct iovec io = { b, 8 };
	struct msghdr m = { .msg_iov = &io, .msg_iovlen = 1 };
	struct timeval tv = { 5, 0 }, zero = { 0, 0 };
	struct pollfd pf = { p[0], POLLIN, 0 };
	struct epoll_event ev = { EPOLLIN, { 0 } };
	sigset_t block, none;
	fd_set r;
	int ep = epoll_create1(0), s = -1;
	long res = 0;
	install(restart, raw);
	sigemptyset(&none);
	sigemptyset(&block);
	sigaddset(&block, SIGUSR1);
	epoll_ctl(ep, EPOLL_CTL_ADD, p[0], &ev);
	FD_ZERO(&r);
	FD_SET(p[0], &r);
	if (kind == SEND)
		fill(p[0]);
	if (kind == CONNECT) { // a full accept queue: the next connect waits
		full = listen_n(0, &(int){ 0 });
		a = addr4(port_of(full));
		for (int i = 0; i < 20; i++) {
			int c = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
			connect(c, (struct sockaddr *)&a, sizeof a);
			if (!ready(c, POLLOUT, 60))
				break;
		}
		s = socket(AF_INET, SOCK_STREAM, 0);
	}
	if (kind == RECV_TIMEO)
		setsockopt(p[0], SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
	if (kind == PPOLL || kind == PSELECT || kind == EPOLL_PWAIT)
		pthread_sigmask(SIG_BLOCK, &block, NULL);
	int interrupted = !restart || kind >= RECV_TIMEO;
	hits = 0;
	go = 1;
	pthread_t t;
	pthread_create(&t, NULL, helper, (void *)(long)(kind | (!interrupted) << 8));
	switch (kind) {
	case RECV: case RECV_TIMEO: res = recv(p[0], b, 8, 0); break;
	case READ: res = read(p[0], b, 8); break;
	case RECVMSG: res = recvmsg(p[0], &m, 0); break;
	// A connection that leaves the kernel for shared memory just now has room again.
	case SEND: do res = send(p[0], big, sizeof big, 0); while (res > 0 && !hits); break;
	case ACCEPT: res = accept(l, NULL, NULL); break;
	case CONNECT: res = connect(s, (struct sockaddr *)&a, sizeof a); break;
	case POLL: res = poll(&pf, 1, -1); break;
	case PPOLL: res = ppoll(&pf, 1, NULL, &none); break;
	case SELECT: res = select(p[0] + 1, &r, NULL, NULL, NULL); break;
	case PSELECT: res = pselect(p[0] + 1, &r, NULL, NULL, NULL, &none); break;
	case EPOLL: res = epoll_wait(ep, &ev, 1, -1); break;
	case EPOLL_PWAIT: res = epoll_pwait(ep, &ev, 1, -1, &none); break;
	}
	int e = errno;
	go = 0;
	pthread_join(t, NULL);
	pthread_sigmask(SIG_UNBLOCK, &block, NULL);
	errno = e;
	if (!hits)
		die("%s: no signal arrived", NAME[kind]);
	if (interrupted && (res != -1 || e != EINTR) && !(kind == SEND && res > 0 && res < (long)sizeof big))
		die("%s (restart %d) gives %ld, expected EINTR", NAME[kind], restart, res);
	if (!interrupted && res < 0)
		die("%s with SA_RESTART gives %ld", NAME[kind], res);
	if (kind == RECV_TIMEO)
		setsockopt(p[0], SOL_SOCKET, SO_RCVTIMEO, &zero, sizeof zero);
	if (kind == SEND) {
		abortive(p[0]);
		close(p[0]);
		close(p[1]);
		pair(p);
	}
	if (kind == CONNECT) {
		close(s);
		close(full);
	}
	close(ep);
}
int main(void)
{
	t_init();
	mainth = pthread_self();
	maintid = (pid_t)syscall(SYS_gettid);
	l = listen_on(&port);
	pair(p);
	for (int restart = 0; restart < 2; restart++)
		for (int k = 0; k < KINDS; k++)
			run(k, restart, 0);
	// handlers of another kind do not matter while their signals are blocked here, or are those of faults
	struct sigaction other = { .sa_handler = on_usr };
	sigset_t two;
	sigemptyset(&two);
	sigaddset(&two, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &two, NULL);
	sigaction(SIGUSR2, &other, NULL);
	sigaction(SIGSEGV, &other, NULL);
	run(RECV, 1, 0);
	run(ACCEPT, 1, 0);
	// a signal that is pending before ppoll/pselect/epoll_pwait with a mask interrupts it at once
	sigset_t block, none;
	sigemptyset(&none);
	sigemptyset(&block);
	sigaddset(&block, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &block, NULL);
	struct pollfd pf = { p[0], POLLIN, 0 };
	hits = 0;
	pthread_kill(mainth, SIGUSR1);
	EQ(poll(&pf, 1, 5), 0);
	EQ(hits, 0);
	FAILS(ppoll(&pf, 1, NULL, &none), EINTR);
	EQ(hits, 1);
	int ep = epoll_create1(0);
	struct epoll_event ev = { EPOLLIN, { 0 } };
	epoll_ctl(ep, EPOLL_CTL_ADD, p[0], &ev);
	pthread_kill(mainth, SIGUSR1);
	FAILS(epoll_pwait(ep, &ev, 1, -1, &none), EINTR);
	EQ(hits, 2);
	signal(SIGUSR2, SIG_DFL);
	signal(SIGSEGV, SIG_DFL);
	pthread_sigmask(SIG_UNBLOCK, &block, NULL);
	// poll is the first call that such a handler interrupts: it never restarts.
	for (int restart = 0; restart < 2; restart++) {
		run(POLL, restart, 1);
		for (int k = 0; k < KINDS; k++)
			run(k, restart, 1);
	}
	return t_ok("eintr");
}
