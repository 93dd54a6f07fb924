// Parent and child use one epoll instance after a fork. Each sees the other's events, recognises them by the pid in
// them and leaves them; each is woken for its own events, whatever the other one takes.
#include "t.h"
#include <sched.h>
#define CONNS 40
#define ROUNDS 5

static void add(int ep, int fd)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u64 = (uint64_t)getpid() << 32 | (uint32_t)fd };
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev), 0);
}

// Accepts at l and echoes bytes until n of them came.
static void serve(int ep, int l, int n)
{
	while (n > 0) {
		struct epoll_event got[8];
		int k = epoll_wait(ep, got, 8, 30000), mine = 0;
		if (k <= 0)
			die("%d events with %d to go", k, n);
		for (int i = 0; i < k; i++) {
			int fd = (uint32_t)got[i].data.u64;
			char c;
			if (got[i].data.u64 >> 32 != (uint64_t)getpid())
				continue;
			mine++;
			if (fd == l) {
				int s = accept(l, NULL, NULL);
				CHECK(s >= 0);
				add(ep, s);
				continue;
			}
			CHECK(got[i].events & EPOLLIN);
			EQ(recv(fd, &c, 1, 0), 1);
			send_all(fd, &c, 1);
			n--;
		}
		if (!mine)
			sched_yield();
	}
}

static void clients(const int port[2])
{
	static int fd[2][CONNS];
	for (int i = 0; i < CONNS; i++)
		for (int p = 0; p < 2; p++)
			fd[p][i] = connect_to(port[p]);
	for (int r = 0; r < ROUNDS; r++)
		for (int i = 0; i < CONNS; i++)
			for (int p = 0; p < 2; p++) {
				char c = (char)('a' + i % 26), d = 0;
				send_all(fd[p][i], &c, 1);
				recv_all(fd[p][i], &d, 1);
				EQ(d, c);
			}
	for (int i = 0; i < CONNS; i++)
		for (int p = 0; p < 2; p++)
			close(fd[p][i]);
}

// Both serve clients of their own at the same time.
static void at_once(void)
{
	int port[2], ep = epoll_create1(0), l = listen_on(&port[0]), told[2];
	add(ep, l);
	CHECK(!pipe(told));
	pid_t child = fork_child();
	if (!child) {
		close(l);
		l = listen_on(&port[1]);
		add(ep, l);
		CHECK(write(told[1], &port[1], sizeof port[1]) == sizeof port[1]);
		serve(ep, l, CONNS * ROUNDS);
		_exit(0);
	}
	CHECK(read(told[0], &port[1], sizeof port[1]) == sizeof port[1]);
	pid_t c = fork_child();
	if (!c) {
		close(ep);
		clients(port);
		_exit(0);
	}
	serve(ep, l, CONNS * ROUNDS);
	reap(c);
	reap(child);
	close(l);
	close(ep);
	close(told[0]);
	close(told[1]);
}

static void *answers(void *p)
{
	int fd = *(int *)p;
	char c;
	recv_all(fd, &c, 1);
	send_all(fd, &c, 1);
	return NULL;
}

// The parent sleeps for a connection of its own while a child begins to use the instance.
static void asleep(void)
{
	int ep = epoll_create1(0), p[2];
	struct sig a, b;
	sigpair(&a, &b);
	pair(p);
	add(ep, p[1]);
	pid_t child = fork_child();
	if (!child) {
		close(p[0]);
		close(p[1]);
		await(b);
		let_it_block(getppid(), getppid());
		int q[2];
		pair(q);
		add(ep, q[1]);
		for (int i = 0; i < 50; i++) {
			pthread_t t;
			CHECK(!pthread_create(&t, NULL, answers, &q[0]));
			send_all(q[1], "x", 1);
			serve(ep, -1, 1);
			char c;
			CHECK(!pthread_join(t, NULL));
			recv_all(q[0], &c, 1);
			tell(b);
			await(b);
		}
		_exit(0);
	}
	tell(a);
	for (int i = 0; i < 50; i++) {
		await(a);
		send_all(p[0], "y", 1);
		serve(ep, -1, 1);
		char c;
		recv_all(p[0], &c, 1);
		tell(a);
	}
	reap(child);
	close(p[0]);
	close(p[1]);
	close(ep);
	close(a.r), close(a.w), close(b.r), close(b.w);
}

// The child goes on with the loop of a parent that only waits for it: listener, and connections by level and by edge.
static void inherited(void)
{
	int port, ep = epoll_create1(0), l = listen_on(&port), c[2], s[2];
	struct epoll_event ev = { .events = EPOLLIN, .data.fd = l }, got[8];
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, l, &ev), 0);
	for (int i = 0; i < 2; i++) {
		c[i] = connect_to(port);
		s[i] = accept(l, NULL, NULL);
		ev.events = EPOLLIN | (i ? EPOLLET : 0);
		ev.data.fd = s[i];
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, s[i], &ev), 0);
	}
	pid_t child = fork_child();
	if (!child) {
		for (int n = 0, more = -1; n < 2 * 20 + 1;) {
			int k = epoll_wait(ep, got, 8, 30000);
			CHECK(k > 0);
			for (int i = 0; i < k; i++) {
				char b;
				if (got[i].data.fd == l) {
					more = accept(l, NULL, NULL);
					CHECK(more >= 0);
					send_all(more, "m", 1);
					n++;
					continue;
				}
				CHECK(got[i].data.fd == s[0] || got[i].data.fd == s[1]);
				// By edge there may be one event more, if the connection changes its path.
				int flags = got[i].data.fd == s[1] ? MSG_DONTWAIT : 0;
				if (recv(got[i].data.fd, &b, 1, flags) != 1) {
					CHECK(flags && errno == EAGAIN);
					continue;
				}
				send_all(got[i].data.fd, &b, 1);
				n++;
			}
		}
		for (int k = epoll_wait(ep, got, 8, 0); k > 0; k--)
			EQ(got[k - 1].data.fd, s[1]);
		_exit(0);
	}
	for (int n = 0; n < 20; n++)
		for (int i = 0; i < 2; i++) {
			char b = 0;
			send_all(c[i], "z", 1);
			recv_all(c[i], &b, 1);
			EQ(b, 'z');
		}
	pid_t client = fork_child();
	if (!client) {
		char b;
		recv_all(connect_to(port), &b, 1);
		_exit(0);
	}
	reap(client);
	reap(child);
	for (int i = 0; i < 2; i++)
		close(c[i]), close(s[i]);
	close(l);
	close(ep);
}

int main(void)
{
	t_init();
	inherited();
	asleep();
	at_once();
	return t_ok("epoll_shared");
}
