// dup, dup2 and dup3 work on a live connection: closing one of several numbers keeps the connection, O_NONBLOCK is
// shared, and FD_CLOEXEC is not.
#include "t.h"
int main(void)
{
	t_init();
	int p[2], q[2];
	char b[16];
	pair(p);
	pair(q);
	expect_shm(p[0]);
	int d = dup(p[0]);
	CHECK(d > 2);
	send_all(d, "one", 3);
	send_all(p[0], "two", 3);
	recv_all(p[1], b, 6);
	CHECK(!memcmp(b, "onetwo", 6));
	EQ(fcntl(d, F_SETFL, O_RDWR | O_NONBLOCK), 0);
	CHECK(fcntl(p[0], F_GETFL) & O_NONBLOCK);
	FAILS(recv(p[0], b, 1, 0), EAGAIN);
	EQ(fcntl(p[0], F_SETFL, O_RDWR), 0);
	CHECK(!(fcntl(d, F_GETFL) & O_NONBLOCK));
	EQ(close(p[0]), 0);
	EQ(ready(p[1], POLLIN | POLLRDHUP, 10), 0); // still open
	FAILS(send(p[0], b, 1, 0), EBADF);
	send_all(d, "x", 1);
	recv_all(p[1], b, 1);
	// dup2 over a live connection closes that one, and only that
	EQ(dup2(d, q[0]), q[0]);
	EQ(recv(q[1], b, 1, 0), 0); // the old peer of this number sees the end
	send_all(p[1], "hello", 5);
	recv_all(q[0], b, 2);
	recv_all(d, b + 2, 3);
	CHECK(!memcmp(b, "hello", 5));
	EQ(close(d), 0);
	send_all(q[0], "y", 1);
	recv_all(p[1], b, 1);
	EQ(dup2(q[0], q[0]), q[0]);
	FAILS(dup3(q[0], q[0], 0), EINVAL);
	FAILS(dup2(9999, q[0]), EBADF);
	send_all(q[0], "y", 1); // unharmed
	recv_all(p[1], b, 1);
	int e = dup3(q[0], 77, O_CLOEXEC);
	EQ(e, 77);
	EQ(fcntl(e, F_GETFD), FD_CLOEXEC);
	EQ(fcntl(q[0], F_GETFD), 0);
	int f = fcntl(e, F_DUPFD, 100), g = fcntl(e, F_DUPFD_CLOEXEC, 100);
	CHECK(f >= 100 && g > f);
	EQ(fcntl(f, F_GETFD), 0);
	EQ(fcntl(g, F_GETFD), FD_CLOEXEC);
	close(q[0]);
	close(e);
	close(f);
	EQ(ready(p[1], POLLIN | POLLRDHUP, 10), 0);
	send_all(g, "z", 1);
	recv_all(p[1], b, 1);
	EQ(shutdown(g, SHUT_WR), 0); // shutdown acts on the connection, not on the number
	EQ(recv(p[1], b, 1, 0), 0);
	close(g);
	// a number that was a connection becomes a file by dup2, and the reverse
	int fd = open("/dev/null", O_RDWR);
	pair(q);
	EQ(dup2(fd, q[0]), q[0]);
	EQ(recv(q[1], b, 1, 0), 0);
	EQ(write(q[0], "abc", 3), 3);
	EQ(read(q[0], b, 3), 0);
	FAILS(recv(q[0], b, 3, 0), ENOTSOCK);
	pair(p);
	EQ(dup2(p[0], fd), fd);
	EQ(write(fd, "abc", 3), 3);
	recv_all(p[1], b, 3);
	// epoll knows the pair (number, description): closing the number while a dup lives leaves the registration
	int ep = epoll_create1(0);
	struct epoll_event ev = { EPOLLIN, { .u32 = 5 } };
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, p[0], &ev), 0);
	ev.data.u32 = 6;
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev), 0); // the same socket under another number
	send_all(p[1], "m", 1);
	struct epoll_event out[4];
	CHECK(ready(fd, POLLIN, 1000));
	EQ(epoll_wait(ep, out, 4, 1000), 2);
	EQ(close(p[0]), 0);
	EQ(epoll_wait(ep, out, 4, 0), 2);
	EQ(close(fd), 0);
	EQ(epoll_wait(ep, out, 4, 0), 0);
	return t_ok("dup_live");
}
