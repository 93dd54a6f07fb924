// Both ends write all that they have before either reads. Kernel TCP holds it; a thread that waits for room in any kind of
// call gets it. A slow reader alone is no reason to leave shared memory.
#include "t.h"
enum { MOST = 600000, PIECE = 16384 };
enum how { BLOCKING, POLL, SELECT, EPOLL, EDGE, AGAIN, HOWS };
static unsigned char b[MOST];
static const size_t n = MOST; // what each end writes
// Waits until there is room, interested in nothing else.
static void await_room(int fd, int ep, enum how how)
{
	struct epoll_event ev;
	fd_set w;
	switch (how) {
	case POLL:
		EQ(ready(fd, POLLOUT, 30000), POLLOUT);
		break;
	case SELECT:
		FD_ZERO(&w);
		FD_SET(fd, &w);
		EQ(select(fd + 1, NULL, &w, NULL, &(struct timeval){ 30, 0 }), 1);
		break;
	case EPOLL:
	case EDGE:
		EQ(epoll_wait(ep, &ev, 1, 30000), 1);
		CHECK(ev.events & EPOLLOUT);
		break;
	default:
		usleep(1000);
	}
}
static int watch(int fd, enum how how)
{
	int ep = epoll_create1(0);
	struct epoll_event ev = { EPOLLOUT | (how == EDGE ? EPOLLET : 0), { .fd = fd } };
	CHECK(ep >= 0);
	if (how == EPOLL || how == EDGE)
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev), 0);
	return ep;
}
static void write_all(int fd, enum how how, unsigned k)
{
	pat_fill(b, n, 0, k);
	if (how == BLOCKING)
		return send_all(fd, b, n);
	int ep = watch(nonblock(fd), how);
	for (size_t at = 0; at < n;) {
		ssize_t r = send(fd, b + at, n - at < PIECE ? n - at : PIECE, MSG_NOSIGNAL);
		if (r > 0) {
			at += r;
			continue;
		}
		EQ(errno, EAGAIN);
		await_room(fd, ep, how);
	}
	close(ep);
	fcntl(fd, F_SETFL, 0);
}
static void read_all(int fd, unsigned k)
{
	recv_all(fd, b, n);
	pat_check(b, n, 0, k);
}
static void two_processes(enum how client, enum how server)
{
	int port, l = listen_on(&port);
	pid_t kid = fork_child();
	if (!kid) {
		int c = connect_to(port);
		write_all(c, client, 1);
		read_all(c, 2);
		send_all(c, "x", 1); // it goes on
		_exit(0);
	}
	int s = accept(l, NULL, NULL);
	CHECK(s >= 0);
	write_all(s, server, 2);
	read_all(s, 1);
	recv_all(s, b, 1);
	EQ(recv(s, b, 1, 0), 0);
	reap(kid);
	close(s), close(l);
}
// One thread has both ends, and waits for room at either.
static void one_thread(enum how how)
{
	int p[2], ep = epoll_create1(0);
	size_t at[2] = { 0, 0 };
	pair(p);
	for (int i = 0; i < 2; i++) {
		struct epoll_event ev = { EPOLLOUT | (how == EDGE ? EPOLLET : 0), { .fd = i } };
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, nonblock(p[i]), &ev), 0);
	}
	pat_fill(b, n, 0, 3);
	while (at[0] < n || at[1] < n) {
		size_t before = at[0] + at[1];
		for (int i = 0; i < 2; i++) {
			ssize_t r = at[i] < n ? send(p[i], b + at[i], n - at[i], MSG_NOSIGNAL) : 0;
			if (r < 0)
				EQ(errno, EAGAIN);
			at[i] += r > 0 ? r : 0;
		}
		if (at[0] + at[1] > before || how == AGAIN)
			continue;
		struct pollfd q[2] = { { p[0], at[0] < n ? POLLOUT : 0, 0 }, { p[1], at[1] < n ? POLLOUT : 0, 0 } };
		struct epoll_event ev;
		CHECK((how == POLL ? poll(q, 2, 30000) : epoll_wait(ep, &ev, 1, 30000)) > 0);
	}
	for (int i = 0; i < 2; i++) {
		fcntl(p[i], F_SETFL, 0);
		read_all(p[i], 3);
	}
	close(ep), close(p[0]), close(p[1]);
}
// Another thread sleeps in epoll_wait for room when the writer finds none.
static int shared_ep;
static void *sleeper(void *arg)
{
	struct epoll_event ev;
	EQ(epoll_wait(shared_ep, &ev, 1, 30000), 1);
	return arg;
}
static void another_thread_waits(void)
{
	int port, l = listen_on(&port);
	pid_t kid = fork_child();
	if (!kid) {
		int c = connect_to(port);
		write_all(c, BLOCKING, 1);
		read_all(c, 2);
		_exit(0);
	}
	int s = nonblock(accept(l, NULL, NULL));
	pthread_t t;
	size_t at = 0;
	pat_fill(b, n, 0, 2);
	shared_ep = epoll_create1(0);
	struct epoll_event ev = { EPOLLOUT | EPOLLET, { .fd = s } };
	EQ(epoll_ctl(shared_ep, EPOLL_CTL_ADD, s, &ev), 0);
	while (at < n) {
		CHECK(epoll_wait(shared_ep, &ev, 1, 0) >= 0);
		EQ(pthread_create(&t, NULL, sleeper, NULL), 0);
		usleep(20000);
		for (ssize_t r; at < n && (r = send(s, b + at, n - at, MSG_NOSIGNAL)) > 0;)
			at += r;
		if (at == n)
			shutdown(s, SHUT_WR); // an edge for the other thread
		pthread_join(t, NULL);
	}
	fcntl(s, F_SETFL, 0);
	read_all(s, 1);
	reap(kid);
	close(shared_ep), close(s), close(l);
}
// The writer waits for its reader, and its own side has a little to read.
static void slow_reader(void)
{
	int p[2];
	pair(p);
	send_all(p[1], b, 1000);
	nonblock(p[0]);
	while (send(p[0], b, sizeof b, 0) > 0 || ready(p[0], POLLOUT, 100))
		;
	expect_shm(p[0]);
	expect_shm(p[1]);
	close(p[0]), close(p[1]);
}
int main(void)
{
	t_init();
	for (enum how how = BLOCKING; how < HOWS; how++) {
		two_processes(how, BLOCKING);
		two_processes(BLOCKING, how);
		two_processes(how, how);
	}
	two_processes(POLL, EPOLL);
	one_thread(POLL);
	one_thread(EPOLL);
	one_thread(EDGE);
	one_thread(AGAIN);
	another_thread_waits();
	slow_reader();
	return t_ok("both_write_first");
}
