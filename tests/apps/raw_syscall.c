// Calls by syscall(2), as libuv closes: the connection ends, and its number is free for other things.
#include "t.h"
#include <sys/syscall.h>
int main(void)
{
	t_init();
	int p[2];
	pair(p);
	expect_shm(p[0]);
	char b[16] = "";
	EQ(syscall(SYS_write, p[0], "ping", 4), 4);
	EQ(syscall(SYS_read, p[1], b, sizeof b), 4);
	EQ(memcmp(b, "ping", 4), 0);
	EQ(syscall(SYS_sendto, p[1], "answer", 6, MSG_NOSIGNAL, NULL, 0), 6);
	EQ(syscall(SYS_recvfrom, p[0], b, sizeof b, 0, NULL, NULL), 6);
	EQ(memcmp(b, "answer", 6), 0);
	FAILS(syscall(SYS_recvfrom, p[0], b, sizeof b, MSG_DONTWAIT, NULL, NULL), EAGAIN);

	int ep = syscall(SYS_epoll_create1, 0);
	struct epoll_event ev = { .events = EPOLLIN, .data.fd = p[1] };
	EQ(syscall(SYS_epoll_ctl, ep, EPOLL_CTL_ADD, p[1], &ev), 0);
	EQ(syscall(SYS_epoll_pwait, ep, &ev, 1, 0, NULL, 8), 0);
	EQ(syscall(SYS_close, p[0]), 0);
	EQ(syscall(SYS_epoll_pwait, ep, &ev, 1, 5000, NULL, 8), 1);
	EQ(ev.data.fd, p[1]);
	EQ(recv(p[1], b, sizeof b, 0), 0);

	// The number comes back at once, for something that is no connection.
	int old = p[0], q[2];
	EQ(pipe(q), 0);
	CHECK(q[0] == old || q[1] == old);
	EQ(write(q[1], "pipe", 4), 4);
	EQ(read(q[0], b, sizeof b), 4);
	EQ(syscall(SYS_close, p[1]), 0);
	FAILS(syscall(SYS_close, p[1]), EBADF);
	CHECK(syscall(SYS_gettid) == getpid());
	return t_ok("raw_syscall");
}
