// Data that TCP_CORK or MSG_MORE (tcp(7), send(2)) holds back arrives in one piece, after 200 ms at the latest, for
// every kind of reader and whatever the writer does meanwhile.
#include "t.h"
static unsigned char big[200000];
static void cork(int fd, int on)
{
	int v = !on;
	socklen_t n = sizeof v;
	EQ(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on), 0);
	EQ(getsockopt(fd, IPPROTO_TCP, TCP_CORK, &v, &n), 0);
	EQ(v, on);
}
static int there(int fd)
{
	int n;
	EQ(ioctl(fd, FIONREAD, &n), 0);
	return n;
}
static void hidden(int fd)
{
	char b;
	EQ(ready(fd, POLLIN, 0), 0);
	FAILS(recv(fd, &b, 1, MSG_DONTWAIT), EAGAIN);
	FAILS(recv(fd, &b, 1, MSG_DONTWAIT | MSG_PEEK), EAGAIN);
	EQ(there(fd), 0);
}
static void takes(int fd, const char *text)
{
	char b[100];
	EQ(ready(fd, POLLIN, 20000), POLLIN);
	EQ(there(fd), strlen(text));
	EQ(recv(fd, b, sizeof b, 0), strlen(text));
	EQ(memcmp(b, text, strlen(text)), 0);
}
static void pushed(int c, int s)
{
	int on = 1;
	cork(c, 1);
	send_all(c, "one", 3);
	EQ(write(c, "two", 3), 3);
	hidden(s);
	cork(c, 0); // by taking the cork out
	takes(s, "onetwo");
	EQ(send(c, "more", 4, MSG_MORE), 4);
	hidden(s);
	send_all(c, "less", 4); // by a call without
	takes(s, "moreless");
	cork(c, 1);
	send_all(c, "nagle", 5);
	hidden(s);
	EQ(setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), 0); // by that, once
	takes(s, "nagle");
	send_all(c, "corked", 6);
	hidden(s);
	cork(c, 0);
	takes(s, "corked");
	cork(c, 1);
	send_all(c, big, sizeof big); // whole segments
	size_t got = 0;
	while (got < sizeof big / 2) {
		EQ(ready(s, POLLIN, 20000), POLLIN);
		got += recv(s, big, sizeof big, 0);
	}
	cork(c, 0);
	while (got < sizeof big)
		got += recv(s, big, sizeof big, 0);
	EQ(got, sizeof big);
}
// Not before some time has passed, and without the writer.
static void by_time(int c, int s)
{
	char b[8];
	double began = now();
	cork(c, 1);
	send_all(c, "poll", 4);
	takes(s, "poll");
	CHECK(now() - began > 0.1);
	began = now();
	send_all(c, "recv", 4);
	EQ(recv(s, b, 8, 0), 4);
	CHECK(now() - began > 0.1);
	for (int edge = 0; edge < 2; edge++) {
		int e = epoll_create1(0);
		struct epoll_event ev = { EPOLLIN | (edge ? EPOLLET : 0), { .u32 = 7 } };
		EQ(epoll_ctl(e, EPOLL_CTL_ADD, s, &ev), 0);
		EQ(epoll_wait(e, &ev, 1, 0), 0);
		began = now();
		send_all(c, "wait", 4);
		EQ(epoll_wait(e, &ev, 1, 20000), 1);
		CHECK(now() - began > 0.1);
		EQ(ev.data.u32, 7);
		EQ(recv(s, b, 8, 0), 4);
		EQ(epoll_wait(e, &ev, 1, 0), 0);
		close(e);
	}
	cork(c, 0);
}
static void *waits(void *arg)
{
	char b[8];
	EQ(recv(*(int *)arg, b, 8, 0), 3);
	EQ(memcmp(b, "abc", 3), 0);
	return arg;
}
// A sleeping reader, of each kind, is woken once for all bytes.
static void asleep(int c, int s)
{
	pthread_t t;
	EQ(pthread_create(&t, NULL, waits, &s), 0);
	cork(c, 1);
	for (int i = 0; i < 3; i++)
		send_all(c, "abc" + i, 1);
	cork(c, 0);
	EQ(pthread_join(t, NULL), 0);
}
// The writer ends in some way: its bytes come before that.
static void ends(int how)
{
	int port, l = listen_on(&port), n;
	char b[100];
	struct sig mine, its;
	sigpair(&mine, &its);
	pid_t kid = fork_child();
	if (!kid) {
		int c = connect_to(port);
		await(its);
		if (how == 4) {
			pid_t other = fork_child(); // another process has it as well
			if (!other) {
				await(its);
				_exit(0);
			}
		}
		cork(c, 1);
		send_all(c, "held", 4);
		tell(its);
		if (how == 0)
			shutdown(c, SHUT_WR);
		else if (how == 1)
			close(c);
		else if (how == 2)
			_exit(0);
		else if (how == 3)
			raise(SIGKILL);
		else if (fork_child() == 0) {
			await(its); // or comes to have it now
			_exit(0);
		}
		await(its);
		if (how == 4)
			while (wait(NULL) > 0)
				;
		_exit(0);
	}
	int s = accept(l, NULL, NULL);
	CHECK(s >= 0);
	tell(mine);
	await(mine);
	EQ(recv(s, b, sizeof b, 0), 4);
	EQ(memcmp(b, "held", 4), 0);
	if (how < 4)
		EQ(recv(s, b, 1, 0), 0);
	close(its.r);
	for (n = how == 4 ? 3 : how < 2; n > 0; n--)
		tell(mine);
	if (how == 3)
		reap_killed(kid);
	else
		reap(kid);
	close(mine.r), close(mine.w), close(its.w), close(s), close(l);
}
int main(void)
{
	t_init();
	signal(SIGPIPE, SIG_IGN);
	int p[2];
	pair(p);
	for (int i = 0; i < 2; i++) {
		pushed(p[i], p[!i]);
		asleep(p[i], p[!i]);
	}
	by_time(p[0], p[1]);
	for (int how = 0; how < 5; how++)
		ends(how);
	return t_ok("cork");
}
