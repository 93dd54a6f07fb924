// With TCP_INQ recvmsg tells in a control message how many bytes are left to read.
#include "t.h"
#ifndef TCP_INQ
#define TCP_INQ 36
#endif
static void expect(int fd, size_t want, int flags, long got, int left)
{
	char b[100];
	union { char b[CMSG_SPACE(sizeof(int)) + 8]; struct cmsghdr h; } c;
	struct iovec v = { b, want };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c };
	EQ(recvmsg(fd, &m, flags), got);
	EQ(m.msg_flags, 0);
	if (left < 0) {
		EQ(m.msg_controllen, 0);
		return;
	}
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);
	CHECK(h);
	EQ(m.msg_controllen, CMSG_SPACE(sizeof(int)));
	EQ(h->cmsg_len, CMSG_LEN(sizeof(int)));
	EQ(h->cmsg_level, IPPROTO_TCP);
	EQ(h->cmsg_type, TCP_INQ);
	int n;
	memcpy(&n, CMSG_DATA(h), sizeof n);
	EQ(n, left);
}
static void cut(int fd, size_t room)
{
	char b[1], c[64];
	struct iovec v = { b, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = room ? c : NULL, .msg_controllen = room };
	EQ(recvmsg(fd, &m, 0), 1);
	EQ(m.msg_flags, MSG_CTRUNC);
}
int main(void)
{
	t_init();
	int port, l = listen_on(&port), on = 1, off = 0, v = 7, two = 2;
	socklen_t n = sizeof v;
	int c = connect_to(port), s = accept(l, NULL, NULL);
	expect_shm(c);
	FAILS(setsockopt(c, IPPROTO_TCP, TCP_INQ, &two, sizeof two), EINVAL);
	send_all(s, "0123456789", 10);
	while (ioctl(c, FIONREAD, &v), v < 10)
		usleep(100);
	expect(c, 1, 0, 1, -1);
	EQ(setsockopt(c, IPPROTO_TCP, TCP_INQ, &on, sizeof on), 0);
	EQ(getsockopt(c, IPPROTO_TCP, TCP_INQ, &v, &n), 0);
	EQ(v, 1);
	expect(c, 2, MSG_PEEK, 2, 9);
	expect(c, 2, 0, 2, 7);
	cut(c, 0);
	cut(c, CMSG_LEN(0) - 1);
	cut(c, CMSG_LEN(0) + 2);
	expect(c, 10, 0, 4, 0);
	send_all(s, "ab", 2);
	shutdown(s, SHUT_WR);
	EQ(ready(c, POLLRDHUP, -1), POLLRDHUP);
	expect(c, 2, 0, 2, 1); // the end is left
	expect(c, 2, 0, 0, 1);
	EQ(setsockopt(c, IPPROTO_TCP, TCP_INQ, &off, sizeof off), 0);
	expect(c, 2, 0, 0, -1);
	// A listener's connections inherit the option from the listener.
	EQ(setsockopt(l, IPPROTO_TCP, TCP_INQ, &on, sizeof on), 0);
	int d = connect_to(port), e = accept(l, NULL, NULL);
	send_all(d, "abc", 3);
	while (ioctl(e, FIONREAD, &v), v < 3)
		usleep(100);
	expect(e, 1, 0, 1, 2);
	return t_ok("tcp_inq");
}
