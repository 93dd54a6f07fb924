// Both ends go on in children, since the server forks after accept and then the client forks too (as pg_basebackup with
// PostgreSQL). Bytes arrive in every kind of wait, and each child sees the other's end.
#include "t.h"
enum { N = 400000 };
static unsigned char a[N], b[N];

static void wait_for(int fd, int way, short ev)
{
	if (way == 1)
		EQ(ready(fd, ev, -1) & ev, ev);
	if (way == 2) {
		int ep = epoll_create1(0);
		struct epoll_event e = { .events = ev == POLLIN ? EPOLLIN : EPOLLOUT };
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e), 0);
		EQ(epoll_wait(ep, &e, 1, -1), 1);
		close(ep);
	}
}
static void get(int fd, int way, size_t n, unsigned k)
{
	for (size_t at = 0; at < n;) {
		wait_for(fd, way, POLLIN);
		ssize_t r = recv(fd, b + at, n - at, 0);
		if (r <= 0)
			die("recv gives %zd at %zu", r, at);
		at += r;
	}
	pat_check(b, n, 0, k);
}
static void put(int fd, int way, size_t n, unsigned k)
{
	pat_fill(a, n, 0, k);
	for (size_t at = 0; at < n;) {
		wait_for(fd, way, POLLOUT);
		ssize_t r = send(fd, a + at, way ? (n - at > 1000 ? 1000 : n - at) : n - at, MSG_NOSIGNAL);
		if (r <= 0)
			die("send gives %zd at %zu", r, at);
		at += r;
	}
}
static void server(int fd, int way)
{
	send_all(fd, "f", 1); // we are the child
	for (int i = 0; i < 20; i++) {
		get(fd, way, 100, i);
		put(fd, way, 100, i + 1);
	}
	get(fd, way, N, 7);
	put(fd, way, N, 8);
	char c;
	EQ(recv(fd, &c, 1, 0), 0);
}
static void client(int fd, int way, struct sig s)
{
	for (int i = 0; i < 20; i++) {
		put(fd, way, 100, i);
		get(fd, way, 100, i + 1);
	}
	put(fd, way, N, 7);
	get(fd, way, N, 8);
	if (way == 2) { // a dead server is the other end
		tell(s);
		char c;
		ssize_t r = recv(fd, &c, 1, 0);
		CHECK(r == 0 || (r < 0 && errno == ECONNRESET));
	}
}
int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	struct sig up, down;
	sigpair(&up, &down);
	// way: recv, poll, epoll; the client's parent keeps its copy of the connection, or does not.
	for (int n = 0; n < 6; n++) {
		int way = n / 2;
		pid_t c = fork_child();
		if (!c) {
			int fd = connect_to(port);
			char x;
			recv_all(fd, &x, 1);
			pid_t kid = fork_child();
			if (!kid) {
				client(fd, way, down);
				_exit(0);
			}
			if (n % 2)
				close(fd);
			reap(kid);
			_exit(0);
		}
		int fd = accept(l, NULL, NULL);
		expect_shm(fd);
		pid_t kid = fork_child();
		if (!kid) {
			close(l);
			server(fd, way);
			_exit(0);
		}
		close(fd);
		if (way == 2) {
			await(up);
			kill(kid, SIGKILL);
			reap_killed(kid);
		} else {
			reap(kid);
		}
		reap(c);
	}
	return t_ok("fork_both");
}
