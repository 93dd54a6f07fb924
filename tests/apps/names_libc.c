// The other names under which libc exports the calls on sockets do the same as the usual ones.
#include "t.h"
#include <dlfcn.h>
static void *sym(const char *n) { return dlsym(RTLD_DEFAULT, n); }
#define CALL(name, like) ((__typeof__(&like))sym(name) ?: like)
int main(void)
{
	t_init();
	int port, l = listen_on(&port), c = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in a = addr4(port);
	char b[8];
	EQ(CALL("__connect", connect)(c, (struct sockaddr *)&a, sizeof a), 0);
	int s = accept(l, NULL, NULL);
	CHECK(s >= 0);
	expect_shm(s);
	expect_shm(c);
	struct pollfd p = { s, POLLIN, 0 };
	EQ(CALL("__poll", poll)(&p, 1, 0), 0);
	EQ(CALL("__send", send)(c, "abcd", 4, 0), 4);
	EQ(CALL("__poll", poll)(&p, 1, 5000), 1);
	EQ(p.revents, POLLIN);
	fd_set r;
	FD_ZERO(&r);
	FD_SET(s, &r);
	struct timeval t = { 5, 0 };
	EQ(CALL("__select", select)(s + 1, &r, NULL, NULL, &t), 1);
	EQ(CALL("__recv", recv)(s, b, 2, 0), 2);
	EQ(CALL("__read", read)(s, b, 2), 2);
	EQ(CALL("__write", write)(s, "xyz", 3), 3);
	EQ(CALL("__fcntl", fcntl)(c, F_SETFL, O_RDWR | O_NONBLOCK), 0);
	recv_all(c, b, 3);
	FAILS(recv(c, b, 1, 0), EAGAIN);
	CHECK(CALL("__fcntl", fcntl)(c, F_GETFL) & O_NONBLOCK);
	int d = CALL("__fcntl", fcntl)(c, F_DUPFD_CLOEXEC, 50);
	CHECK(d >= 50);
	EQ(CALL("__dup2", dup2)(c, 60), 60);
	struct mmsghdr mm = { .msg_hdr = { .msg_iov = &(struct iovec){ "mm", 2 }, .msg_iovlen = 1 } };
	EQ(CALL("__sendmmsg", sendmmsg)(60, &mm, 1, 0), 1);
	recv_all(s, b, 2);
	EQ(CALL("__close", close)(60), 0);
	EQ(CALL("__close", close)(d), 0);
	EQ(recv(s, b, 1, MSG_DONTWAIT), -1);
	EQ(CALL("__close", close)(c), 0);
	EQ(recv(s, b, 1, 0), 0);
	return t_ok("names_libc");
}
