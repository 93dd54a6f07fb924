// A process waits at a bound socket that another process has too, by a fork or by SCM_RIGHTS, and that this other one makes a
// listener: it hears of clients, and in shared memory from the first on if it is the one that waits for them. So it does if it
// registered the socket in an epoll instance before the other process had it.
#include "t.h"
enum how { POLL, SELECT, EPOLL, EDGE, HOWS };
static int wait_at(int l, int ep, enum how how, int ms)
{
	struct epoll_event ev;
	fd_set r;
	switch (how) {
	case POLL:
		return ready(l, POLLIN, ms) & POLLIN;
	case SELECT:
		FD_ZERO(&r);
		FD_SET(l, &r);
		return select(l + 1, &r, NULL, NULL, &(struct timeval){ ms / 1000, ms % 1000 * 1000 }) > 0;
	default:
		return epoll_wait(ep, &ev, 1, ms) > 0 && ev.events & EPOLLIN;
	}
}
// What the kernel says of a socket that is not connected.
static void unconnected(int s, int ep, enum how how)
{
	struct epoll_event ev;
	fd_set x, w;
	EQ(ready(s, POLLIN, 10000), POLLHUP);
	EQ(ready(s, POLLOUT, 0), POLLOUT | POLLHUP);
	FD_ZERO(&x);
	FD_SET(s, &x);
	w = x;
	EQ(select(s + 1, NULL, &w, NULL, NULL), 1);
	double before = now();
	EQ(select(s + 1, NULL, NULL, &x, &(struct timeval){ 0, 20000 }), 0);
	CHECK(now() - before > 0.015 && !FD_ISSET(s, &x));
	if (how >= EPOLL) {
		EQ(epoll_wait(ep, &ev, 1, 10000), 1);
		EQ(ev.events, EPOLLHUP);
	}
	if (how == EDGE)
		EQ(epoll_wait(ep, &ev, 1, 1), 0);
}
static void registers(int ep, int s, enum how how)
{
	struct epoll_event ev = { EPOLLIN | (how == EDGE ? EPOLLET : 0), { .fd = s } };
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, s, &ev), 0);
}
static void waits(int s, int ep, struct sig g, enum how how, int alone)
{
	char b[6];
	unconnected(s, ep, how);
	tell(g), await(g); // it listens
	usleep(20000);
	EQ(wait_at(s, ep, how, 1), 0);
	tell(g);
	CHECK(wait_at(s, ep, how, 10000));
	int c = accept(s, NULL, NULL);
	CHECK(c >= 0);
	recv_all(c, b, 6);
	if (alone)
		expect_shm(c);
	send_all(c, "answer", 6);
	close(c);
	await(g);
}
static void client(int at)
{
	char b[6];
	int c = connect_to(at);
	send_all(c, "client", 6);
	recv_all(c, b, 6);
	EQ(recv(c, b, 1, 0), 0);
	close(c);
}
// A process of its own is a client of the socket, which is a listener by now.
static void connects(int s)
{
	pid_t c = fork_child();
	if (!c) {
		int at = port_of(s);
		close(s);
		client(at);
		_exit(0);
	}
	reap(c);
}
// `looks`: the process that listens has waited at the listener once, so that clients may come to it as well.
static void listens(int passes, int looks, enum how how)
{
	int s = socket(AF_INET, SOCK_STREAM, 0), u[2];
	struct sockaddr_in a = addr4(0);
	struct sig g, its;
	sigpair(&g, &its);
	EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, u), 0);
	EQ(bind(s, (struct sockaddr *)&a, sizeof a), 0);
	if (passes) {
		close(s);
		s = -1;
	}
	pid_t kid = fork_child();
	if (!kid) {
		int ep = epoll_create1(0);
		if (passes)
			s = take_fd(u[1]);
		if (how >= EPOLL)
			registers(ep, s, how);
		waits(s, ep, its, how, !looks);
		_exit(0);
	}
	if (passes) {
		s = socket(AF_INET, SOCK_STREAM, 0);
		EQ(bind(s, (struct sockaddr *)&a, sizeof a), 0);
		pass_fd(u[0], s);
	}
	await(g);
	EQ(listen(s, 16), 0);
	if (looks)
		EQ(ready(s, POLLIN, 0), 0);
	tell(g), await(g);
	connects(s);
	tell(g);
	reap(kid);
	close(s), close(u[0]), close(u[1]);
	close(g.r), close(g.w), close(its.r), close(its.w);
}
// The socket is registered before the fork: in an instance that the child inherits, or in one of the parent's own, where the
// child listens.
static void registered_before(int parent_waits, enum how how)
{
	int s = socket(AF_INET, SOCK_STREAM, 0), ep = epoll_create1(EPOLL_CLOEXEC);
	struct sockaddr_in a = addr4(0);
	struct sig g, its;
	sigpair(&g, &its);
	EQ(bind(s, (struct sockaddr *)&a, sizeof a), 0);
	registers(ep, s, how);
	pid_t kid = fork_child();
	if (!kid && !parent_waits) {
		waits(s, ep, its, how, 1);
		_exit(0);
	}
	if (!kid)
		g = its;
	if (kid && parent_waits) {
		waits(s, ep, g, how, 1);
	} else {
		close(ep);
		await(g);
		EQ(listen(s, 16), 0);
		tell(g), await(g);
		connects(s);
		tell(g);
		if (!kid)
			_exit(0);
	}
	reap(kid);
	close(s);
	if (parent_waits)
		close(ep);
	close(g.r), close(g.w), close(its.r), close(its.w);
}
int main(void)
{
	t_init();
	for (int i = 0; i < 4; i++)
		registered_before(i & 1, i & 2 ? EDGE : EPOLL);
	for (enum how how = POLL; how < HOWS; how++)
		for (int i = 0; i < 4; i++)
			listens(i & 1, i >> 1, how);
	return t_ok("listens_later");
}
