// A peer that has ended its stream and is killed with bytes unread resets the connection: a writer that waits for room
// notices that in every kind of wait and gets EPIPE, and one whose bytes were all read gets no error. The same happens
// in a child of a fork.
#include "t.h"
#include <poll.h>
static int p[2];
static pid_t peer;
// A child that has p[1] alone ends its stream, and is killed when it has.
static void meet(int reads)
{
	int port, l = listen_on(&port), ready[2];
	EQ(pipe(ready), 0);
	peer = fork();
	if (!peer) {
		close(l);
		int c = connect_to(port);
		char b;
		EQ(read(c, &b, 1), 1);
		EQ(shutdown(c, SHUT_WR), 0);
		if (reads)
			EQ(read(c, &b, 1), 1);
		EQ(write(ready[1], "r", 1), 1);
		for (;;)
			pause();
	}
	p[0] = accept(l, NULL, NULL);
	CHECK(p[0] >= 0);
	close(l);
	send_all(p[0], "a", 1);
	char b[70000] = { 0 };
	EQ(recv(p[0], b, 1, 0), 0);
	fcntl(p[0], F_SETFL, O_NONBLOCK);
	if (reads)
		send_all(p[0], "b", 1);
	EQ(read(ready[0], b, 1), 1);
	close(ready[0]);
	close(ready[1]);
	if (!reads)
		while (send(p[0], b, sizeof b, MSG_NOSIGNAL) > 0)
			;
}
static void end_peer(void)
{
	EQ(kill(peer, SIGKILL), 0);
	EQ(waitpid(peer, NULL, 0), peer);
}
static void wait_in(int how)
{
	struct epoll_event ev = { .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | (how == 1 ? EPOLLET : 0) };
	if (how == 2) {
		end_peer();
		struct pollfd q = { p[0], POLLOUT, 0 };
		EQ(poll(&q, 1, 10000), 1);
		EQ(q.revents, POLLOUT | POLLERR | POLLHUP);
		return;
	}
	int ep = epoll_create1(0);
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, p[0], &ev), 0);
	EQ(epoll_wait(ep, &ev, 1, 10000), 1);
	EQ(ev.events, EPOLLIN | EPOLLRDHUP);
	if (how == 1)
		EQ(epoll_wait(ep, &ev, 1, 0), 0);
	end_peer();
	do
		EQ(epoll_wait(ep, &ev, 1, 10000), 1);
	while (!(ev.events & EPOLLERR) && !how);
	EQ(ev.events, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLERR | EPOLLHUP);
	close(ep);
}
static void one(int how)
{
	meet(0);
	wait_in(how);
	FAILS(send(p[0], "x", 1, MSG_NOSIGNAL), EPIPE);
	close(p[0]);
}
int main(void)
{
	t_init();
	for (int how = 0; how < 3; how++)
		one(how);
	// The peer has read all: its death is no news, and nobody is woken for it again and again.
	meet(1);
	struct epoll_event ev = { .events = EPOLLIN | EPOLLOUT | EPOLLET };
	int ep = epoll_create1(0);
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, p[0], &ev), 0);
	EQ(epoll_wait(ep, &ev, 1, 10000), 1);
	end_peer();
	EQ(epoll_wait(ep, &ev, 1, 30), 0);
	EQ(send(p[0], "x", 1, MSG_NOSIGNAL), 1);
	close(p[0]);
	close(ep);
	return t_ok("kill_after_shutdown");
}
