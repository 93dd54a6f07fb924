// A thread that sleeps in one of several calls while netacc_ctl does something to its process.
#include "ctl.h"
enum way { RECV, RECV_ALL, POLL, SELECT, EPOLL, EPOLL_EDGE, ACCEPT, POLL_LISTENER, EPOLL_LISTENER, WAYS };
static const char *NAMES[] = { "recv", "recv MSG_WAITALL", "poll", "select", "epoll", "epoll edge", "accept", "poll listener",
			       "epoll listener" };
static int ep, lsn, port, conn[2], got = -1;
static enum way way;
static void wait_for(int fd)
{
	struct epoll_event ev = { .events = EPOLLIN | (way == EPOLL_EDGE ? EPOLLET : 0), .data.u64 = 77 };
	fd_set f;
	switch (way) {
	case POLL:
	case POLL_LISTENER:
		EQ(ready(fd, POLLIN, -1), 1);
		break;
	case SELECT:
		FD_ZERO(&f);
		FD_SET(fd, &f);
		EQ(select(fd + 1, &f, NULL, NULL, NULL), 1);
		break;
	case EPOLL:
	case EPOLL_EDGE:
	case EPOLL_LISTENER:
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev), 0);
		ev.data.u64 = 0;
		EQ(epoll_wait(ep, &ev, 1, -1), 1);
		EQ(ev.data.u64, 77);
		EQ(epoll_ctl(ep, EPOLL_CTL_DEL, fd, NULL), 0);
		break;
	default:
		break;
	}
}
static void *sleeper(void *x)
{
	no_sigchld();
	*(volatile pid_t *)x = gettid();
	char b[8];
	if (way >= ACCEPT) {
		wait_for(lsn);
		CHECK((got = accept(lsn, NULL, NULL)) >= 0);
		return NULL;
	}
	wait_for(conn[1]);
	EQ(recv(conn[1], b, 8, way == RECV_ALL ? MSG_WAITALL : 0), 8);
	CHECK(!memcmp(b, "abcdefgh", 8));
	return NULL;
}
