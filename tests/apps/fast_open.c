// With TCP Fast Open a send that connects (tcp(7)) affects only its own socket and no other unconnected one.
#include "t.h"
#include <netinet/tcp.h>
#ifndef TCP_FASTOPEN_CONNECT
#define TCP_FASTOPEN_CONNECT 30
#endif
static int l, port;
static void answered(int fd)
{
	char b[5];
	int a = accept(l, NULL, NULL);
	CHECK(a >= 0);
	recv_all(a, b, 5);
	CHECK(!memcmp(b, "hello", 5));
	send_all(a, "world", 5);
	recv_all(fd, b, 5);
	CHECK(!memcmp(b, "world", 5));
	close(a);
	EQ(recv(fd, b, 5, 0), 0);
	close(fd);
}
// A connect that has not been reported is completed first; one that is pending, or was reported, is not begun again.
static void connecting(void)
{
	struct sockaddr_in at = addr4(port), nowhere = { .sin_family = AF_UNSPEC };
	struct iovec v = { "hello", 5 };
	struct msghdr m = { .msg_name = &nowhere, .msg_namelen = sizeof nowhere, .msg_iov = &v, .msg_iovlen = 1 };
	for (int i = 0; i < 2; i++) {
		int fd = nonblock(socket(AF_INET, SOCK_STREAM, 0));
		FAILS(connect(fd, (struct sockaddr *)&at, sizeof at), EINPROGRESS);
		EQ(ready(fd, POLLOUT, -1), POLLOUT);
		FAILS(sendto(fd, "hello", 5, MSG_FASTOPEN, (struct sockaddr *)&nowhere, sizeof nowhere), EOPNOTSUPP);
		FAILS(sendmsg(fd, &m, MSG_FASTOPEN), EOPNOTSUPP);
		EQ(i ? send(fd, "hello", 5, MSG_FASTOPEN) : sendto(fd, "hello", 5, MSG_FASTOPEN, (struct sockaddr *)&at, sizeof at), 5);
		FAILS(sendto(fd, "hello", 5, MSG_FASTOPEN, (struct sockaddr *)&at, sizeof at), EISCONN);
		FAILS(connect(fd, (struct sockaddr *)&at, sizeof at), EISCONN);
		answered(fd);
	}
	int other, full = listen_n(0, &other), fd = -1;
	at = addr4(other);
	for (int i = 0; i < 8; i++) { // kernel TCP takes one, NetACC up to one in each of two queues
		fd = nonblock(socket(AF_INET, SOCK_STREAM, 0));
		FAILS(connect(fd, (struct sockaddr *)&at, sizeof at), EINPROGRESS);
	}
	FAILS(send(fd, "hello", 5, MSG_FASTOPEN), EALREADY);
	FAILS(sendto(fd, "", 0, MSG_FASTOPEN, (struct sockaddr *)&at, sizeof at), EALREADY);
	FAILS(sendto(fd, "hello", 5, MSG_FASTOPEN, (struct sockaddr *)&nowhere, sizeof nowhere), EOPNOTSUPP);
	close(full);
}
int main(void)
{
	t_init();
	int qlen = 5, one = 1;
	l = listen_on(&port);
	EQ(setsockopt(l, IPPROTO_TCP, TCP_FASTOPEN, &qlen, sizeof qlen), 0);
	struct sockaddr_in at = addr4(port);
	for (int i = 0; i < 3; i++) {
		int other = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0);
		if (i == 2) {
			struct iovec v = { "hello", 5 };
			struct msghdr m = { .msg_name = &at, .msg_namelen = sizeof at, .msg_iov = &v, .msg_iovlen = 1 };
			EQ(sendmsg(fd, &m, MSG_FASTOPEN), 5);
		} else {
			EQ(sendto(fd, "hello", 5, MSG_FASTOPEN, (struct sockaddr *)&at, sizeof at), 5);
		}
		FAILS(send(other, "x", 1, MSG_NOSIGNAL), EPIPE);
		answered(fd);
		EQ(connect(other, (struct sockaddr *)&at, sizeof at), 0);
		send_all(other, "hello", 5);
		answered(other);
	}
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	EQ(setsockopt(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, &one, sizeof one), 0);
	EQ(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
	send_all(fd, "hello", 5);
	answered(fd);
	connecting();
	return t_ok("fast_open");
}
