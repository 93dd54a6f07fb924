// A child executes a program, or closes its inherited descriptors: the epoll instance that it shares with its parent is
// not changed. Registrations that the parent removed stay removed, new ones have the new value, and existing ones are
// reported.
#include "t.h"

enum act { PASS, LEAK, CLOSE, UNUSED, ACTS };

// What a child does with the listener and the connection, at the parent's sign.
static pid_t child_of(enum act act, int l, int s, struct sig sign)
{
	pid_t p = fork_child();
	if (p)
		return p;
	await(sign);
	if (act == CLOSE) {
		close(l);
		close(s);
		_exit(0);
	}
	if (act == PASS) {
		CHECK(dup2(l, 60) == 60 && dup2(s, 61) == 61);
		execl("/bin/true", "true", "60", "61", (char *)NULL);
	} else if (act == LEAK) {
		execl("/bin/true", "true", (char *)NULL);
	}
	_exit(act != UNUSED);
}

static void add(int ep, int fd, int data)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u64 = data };
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev), 0);
}

// The events of the next call: a mask of 1 << data.
static int wait_for(int ep, int ms)
{
	struct epoll_event got[8];
	int n = epoll_wait(ep, got, 8, ms), seen = 0;
	CHECK(n >= 0);
	for (int i = 0; i < n; i++) {
		CHECK(got[i].data.u64 < 30 && !(seen & 1 << got[i].data.u64));
		seen |= 1 << got[i].data.u64;
	}
	return seen;
}

static void run(enum act act, int removed, int again)
{
	int port, l = nonblock(listen_on(&port)), ep = epoll_create1(EPOLL_CLOEXEC);
	struct sig a, b;
	sigpair(&a, &b);
	add(ep, l, 1);
	int c = connect_to(port);
	EQ(wait_for(ep, 10000), 1 << 1);
	int s = accept(l, NULL, NULL);
	add(ep, s, 2);
	pid_t child = child_of(act, l, s, b);
	if (removed) {
		EQ(epoll_ctl(ep, EPOLL_CTL_DEL, l, NULL), 0);
		EQ(epoll_ctl(ep, EPOLL_CTL_DEL, s, NULL), 0);
	}
	tell(a);
	reap(child);
	if (removed && again) {
		add(ep, l, 3);
		add(ep, s, 4);
	}
	EQ(wait_for(ep, 0), 0);
	send_all(c, "x", 1);
	int there = !removed ? 1 << 2 : again ? 1 << 4 : 0;
	EQ(wait_for(ep, there ? 10000 : 20), there);
	char x;
	recv_all(s, &x, 1);
	int c2 = connect_to(port);
	there = !removed ? 1 << 1 : again ? 1 << 3 : 0;
	EQ(wait_for(ep, there ? 10000 : 20), there);
	CHECK(ready(l, POLLIN, 10000));
	int s2 = accept(l, NULL, NULL);
	CHECK(s2 >= 0);
	EQ(wait_for(ep, 0), 0);
	FAILS(accept(l, NULL, NULL), EAGAIN);
	close(c), close(c2), close(s), close(s2), close(l), close(ep);
	close(a.r), close(a.w), close(b.r), close(b.w);
}

int main(void)
{
	t_init();
	for (int act = 0; act < ACTS; act++) {
		run(act, 0, 0);
		run(act, 1, 0);
		run(act, 1, 1);
	}
	return t_ok("epoll_shared_exec");
}
