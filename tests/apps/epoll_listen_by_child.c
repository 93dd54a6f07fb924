// A socket is registered with an epoll instance and inherited by a child, and one of the two processes listens on it afterwards.
// Whichever waits in the instance is told of connections.
#include "t.h"
static void serve(int ep, int l, int port)
{
	struct epoll_event ev;
	char c;
	for (int i = 0; i < 3; i++) {
		int fd = connect_to(port);
		send_all(fd, "q", 1);
		EQ(epoll_wait(ep, &ev, 1, 20000), 1);
		EQ(ev.events, EPOLLIN);
		EQ(ev.data.u32, 77);
		int s = accept(l, NULL, NULL);
		CHECK(s >= 0);
		recv_all(s, &c, 1);
		EQ(c, 'q');
		close(s);
		EQ(recv(fd, &c, 1, 0), 0);
		close(fd);
	}
}
// `early`: registered before it is bound. `child_listens`, and not the parent; `child_waits`, and not the parent.
static void one(int early, int child_listens, int child_waits, int edge)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct epoll_event ev = { EPOLLIN | (edge ? EPOLLET : 0), { .u32 = 77 } };
	int l = socket(AF_INET, SOCK_STREAM, 0), ep = epoll_create1(0);
	if (early)
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, l, &ev), 0);
	EQ(bind(l, (struct sockaddr *)&a, sizeof a), 0);
	if (!early)
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, l, &ev), 0);
	struct sig of_child, its;
	sigpair(&of_child, &its);
	pid_t kid = fork_child();
	if (!kid) {
		await(its);
		if (child_listens)
			EQ(listen(l, 16), 0);
		if (child_waits)
			serve(ep, l, port_of(l));
		tell(its);
		await(its);
		_exit(0);
	}
	if (!child_listens)
		EQ(listen(l, 16), 0);
	tell(of_child);
	await(of_child);
	if (!child_waits)
		serve(ep, l, port_of(l));
	tell(of_child);
	reap(kid);
	serve(ep, l, port_of(l));
	close(l);
	close(ep);
	close(of_child.r);
	close(of_child.w);
	close(its.r);
	close(its.w);
}
int main(void)
{
	t_init();
	for (int i = 0; i < 16; i++)
		one(i & 1, i & 2, i & 4, i & 8);
	return t_ok("epoll_listen_by_child");
}
