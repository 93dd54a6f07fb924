// A process forks and closes its copy of a connection, as a server does that forks for each one. The child, which then has
// it alone, waits for it by every call, forks again, shares it with its own child, and leaves it to that.
#include "t.h"
enum { TURNS = 150 };
enum how { RECV, POLL, SELECT, EPOLL, EPOLL_ET, HOWS };

// Waits until there is something to read.
static void wait_for(enum how how, int fd, int ep)
{
	struct pollfd p = { fd, POLLIN, 0 };
	struct epoll_event ev;
	fd_set set;
	switch (how) {
	case RECV:
		break;
	case POLL:
		EQ(poll(&p, 1, -1), 1);
		break;
	case SELECT:
		FD_ZERO(&set);
		FD_SET(fd, &set);
		EQ(select(fd + 1, &set, NULL, NULL, NULL), 1);
		break;
	default:
		EQ(epoll_wait(ep, &ev, 1, -1), 1);
		EQ(ev.data.fd, fd);
	}
}

static int instance(enum how how, int fd)
{
	int ep = epoll_create1(0);
	struct epoll_event ev = { .events = how == EPOLL_ET ? EPOLLIN | EPOLLET : EPOLLIN, .data.fd = fd };
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev), 0);
	return ep;
}

static void turn(enum how how, int fd, int ep, unsigned *next)
{
	unsigned v;
	send_all(fd, next, 4);
	wait_for(how, fd, ep);
	recv_all(fd, &v, 4);
	EQ(v, *next + 1000);
	++*next;
}

// The other end answers all numbers, some of them late.
static void answer(int fd)
{
	unsigned i = 0, v;
	ssize_t r;
	while ((r = recv(fd, &v, 4, MSG_WAITALL)) == 4) {
		EQ(v, i);
		if (i++ % 8 == 0)
			usleep(300);
		v += 1000;
		send_all(fd, &v, 4);
	}
	EQ(r, 0);
	EQ(i, 3 * TURNS + 1);
	_exit(0);
}

int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	for (int who = 0; who < 2; who++) { // whether the accepting or the connecting side forks
		for (enum how how = RECV; how < HOWS; how++) {
			pid_t peer = fork_child();
			if (!peer)
				answer(who ? accept(l, NULL, NULL) : connect_to(port));
			int fd = who ? connect_to(port) : accept(l, NULL, NULL);
			unsigned next = 0;
			turn(RECV, fd, -1, &next);
			int second = dup(fd); // the child goes on with either number
			CHECK(second >= 0);
			pid_t kid = fork_child();
			if (kid) { // the parent is done with it at once
				close(fd);
				close(second);
				reap(kid);
				reap(peer);
				continue;
			}
			close(how % 2 ? fd : second);
			fd = how % 2 ? second : fd;
			int ep = how >= EPOLL ? instance(how, fd) : -1;
			for (int i = 0; i < TURNS; i++)
				turn(how, fd, ep, &next);
			struct sig a, b;
			sigpair(&a, &b);
			pid_t grandkid = fork_child();
			struct sig me = grandkid ? a : b;
			if (!grandkid && ep >= 0) // one of its own: edges of a set that two processes have go to either
				ep = instance(how, fd);
			for (int i = 0; i < TURNS; i++) { // both have it, and use it in turn
				if (!(grandkid && i == 0))
					await(me);
				if (i % 2 == !grandkid)
					turn(how, fd, ep, &next);
				else
					next++;
				tell(me);
			}
			if (grandkid) {
				if (ep >= 0)
					close(ep);
				close(fd);
				reap(grandkid);
				_exit(0);
			}
			for (int i = 0; i < TURNS; i++)
				turn(how, fd, ep, &next);
			_exit(0);
		}
	}
	return t_ok("fork_sole");
}
