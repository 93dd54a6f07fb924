// A non-blocking connect behaves as with TCP: EINPROGRESS, then writable with SO_ERROR 0; a second connect returns 0,
// and a third one EISCONN. A refused one reports events, gives SO_ERROR once, and the same socket can connect again.
#include "t.h"
static int soerr(int fd)
{
	int e = -1;
	socklen_t n = sizeof e;
	EQ(getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &n), 0);
	EQ(n, 4);
	return e;
}
int main(void)
{
	t_init();
	int port, l = listen_on(&port), dead, dl = listen_on(&dead);
	struct sockaddr_in a = addr4(port), d = addr4(dead);
	close(dl);
	dl = socket(AF_INET, SOCK_STREAM, 0); // bound and not listening: keeps the port from others
	EQ(setsockopt(dl, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, 4), 0);
	EQ(bind(dl, (struct sockaddr *)&d, sizeof d), 0);
	int fd = nonblock(socket(AF_INET, SOCK_STREAM, 0));
	FAILS(connect(fd, (struct sockaddr *)&a, sizeof a), EINPROGRESS);
	EQ(ready(fd, POLLIN | POLLOUT, 1000), POLLOUT);
	EQ(soerr(fd), 0);
	EQ(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
	FAILS(connect(fd, (struct sockaddr *)&a, sizeof a), EISCONN);
	close(fd);
	close(accept(l, NULL, NULL));
	// refused, SO_ERROR asked
	fd = nonblock(socket(AF_INET, SOCK_STREAM, 0));
	FAILS(connect(fd, (struct sockaddr *)&d, sizeof d), EINPROGRESS);
	EQ(ready(fd, POLLOUT, 1000), POLLOUT | POLLERR | POLLHUP);
	EQ(ready(fd, POLLIN | POLLOUT | POLLRDHUP, 0), POLLIN | POLLOUT | POLLRDHUP | POLLERR | POLLHUP);
	EQ(soerr(fd), ECONNREFUSED);
	EQ(soerr(fd), 0);
	EQ(ready(fd, POLLIN | POLLOUT | POLLRDHUP, 0), POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
	FAILS(connect(fd, (struct sockaddr *)&a, sizeof a), ECONNABORTED); // once
	FAILS(connect(fd, (struct sockaddr *)&a, sizeof a), EINPROGRESS);
	EQ(ready(fd, POLLIN | POLLOUT, 1000), POLLOUT);
	EQ(soerr(fd), 0);
	send_all(fd, "x", 1);
	int s = accept(l, NULL, NULL);
	char c;
	recv_all(s, &c, 1);
	close(s);
	close(fd);
	// refused, connect asked
	fd = nonblock(socket(AF_INET, SOCK_STREAM, 0));
	FAILS(connect(fd, (struct sockaddr *)&d, sizeof d), EINPROGRESS);
	CHECK(ready(fd, POLLOUT, 1000));
	FAILS(connect(fd, (struct sockaddr *)&d, sizeof d), ECONNREFUSED);
	EQ(soerr(fd), 0);
	FAILS(connect(fd, (struct sockaddr *)&d, sizeof d), EINPROGRESS);
	CHECK(ready(fd, POLLOUT, 1000));
	FAILS(recv(fd, &c, 1, 0), ECONNREFUSED);
	EQ(recv(fd, &c, 1, 0), 0);
	FAILS(send(fd, &c, 1, MSG_NOSIGNAL), EPIPE);
	close(fd);
	fd = nonblock(socket(AF_INET, SOCK_STREAM, 0));
	FAILS(connect(fd, (struct sockaddr *)&d, sizeof d), EINPROGRESS);
	CHECK(ready(fd, POLLOUT, 1000));
	FAILS(send(fd, &c, 1, 0), ECONNREFUSED);
	FAILS(send(fd, &c, 1, MSG_NOSIGNAL), EPIPE);
	close(fd);
	// refused, blocking; then the same socket connects to a living port
	fd = socket(AF_INET, SOCK_STREAM, 0);
	FAILS(connect(fd, (struct sockaddr *)&d, sizeof d), ECONNREFUSED);
	EQ(soerr(fd), 0);
	EQ(ready(fd, POLLIN | POLLOUT | POLLRDHUP, 0), POLLOUT | POLLHUP);
	EQ(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
	FAILS(connect(fd, (struct sockaddr *)&a, sizeof a), EISCONN);
	s = accept(l, NULL, NULL);
	send_all(s, "y", 1);
	recv_all(fd, &c, 1);
	// AF_UNSPEC dissolves the connection: the peer sees a reset (or an end), the socket can connect again
	struct sockaddr un = { .sa_family = AF_UNSPEC };
	EQ(connect(fd, &un, sizeof un), 0);
	CHECK(ready(s, POLLIN | POLLRDHUP, 1000));
	FAILS(recv(s, &c, 1, 0), ECONNRESET);
	close(s);
	EQ(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
	s = accept(l, NULL, NULL);
	send_all(fd, "z", 1);
	recv_all(s, &c, 1);
	close(fd);
	close(s);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	FAILS(connect(fd, (struct sockaddr *)&a, 3), EINVAL);
	a.sin_family = AF_UNIX;
	FAILS(connect(fd, (struct sockaddr *)&a, sizeof a), EAFNOSUPPORT);
	a.sin_family = AF_INET;
	FAILS(accept(fd, NULL, NULL), EINVAL);
	FAILS(accept(0x7fff, NULL, NULL), EBADF);
	FAILS(connect(l, (struct sockaddr *)&a, sizeof a), EISCONN);
	FAILS(recv(fd, &c, 1, 0), ENOTCONN);
	FAILS(send(fd, &c, 1, MSG_NOSIGNAL), EPIPE);
	EQ(ready(fd, POLLIN | POLLOUT | POLLRDHUP, 0), POLLOUT | POLLHUP);
	FAILS(shutdown(fd, SHUT_RD), ENOTCONN); // fails, and is remembered all the same
	EQ(recv(fd, &c, 1, 0), 0);
	EQ(ready(fd, POLLIN | POLLOUT | POLLRDHUP, 0), POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
	return t_ok("so_error");
}
