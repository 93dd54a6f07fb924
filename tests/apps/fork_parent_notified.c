// Parent and child of a server share a connection, on which the child sleeps. The parent gets its events meanwhile,
// because the client forks as well, and the child is still woken.
#include "t.h"
static void child(int fd, int way)
{
	char c;
	if (way == 1)
		EQ(ready(fd, POLLIN, -1), POLLIN);
	if (way == 2) {
		int ep = epoll_create1(0);
		struct epoll_event e = { .events = EPOLLIN };
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e), 0);
		EQ(epoll_wait(ep, &e, 1, -1), 1);
	}
	recv_all(fd, &c, 1);
	EQ(c, 'x');
	send_all(fd, "y", 1);
}
static void client(int port, struct sig s)
{
	int fd = connect_to(port);
	char c;
	send_all(fd, "a", 1);
	await(s);
	pid_t kid = fork_child();
	if (!kid)
		_exit(0);
	reap(kid);
	tell(s);
	await(s);
	send_all(fd, "x", 1);
	recv_all(fd, &c, 1);
}
int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	for (int way = 0; way < 3; way++) {
		struct sig up, down;
		char c;
		sigpair(&up, &down);
		pid_t k = fork_child();
		if (!k) {
			client(port, down);
			_exit(0);
		}
		int fd = accept(l, NULL, NULL);
		CHECK(fd >= 0);
		recv_all(fd, &c, 1);
		pid_t s = fork_child();
		if (!s) {
			child(fd, way);
			_exit(0);
		}
		let_it_block(s, s);
		tell(up);
		struct pollfd p[2] = { { .fd = up.r, .events = POLLIN }, { .fd = fd } };
		EQ(poll(p, 2, -1), 1);
		await(up);
		tell(up);
		reap(s);
		reap(k);
		close(fd);
	}
	return t_ok("fork_parent_notified");
}
