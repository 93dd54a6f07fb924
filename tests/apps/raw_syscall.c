// A connection that is closed by syscall(2), as libuv does, ends, and its number is free for other files.
#include "t.h"
#include <sys/syscall.h>
// The kernel's form of these calls: it writes the time left, and takes the mask and offsets in other places.
static void kernel_forms(int p[2])
{
	char b[16] = "";
	struct iovec v = { b, 5 };
	struct { const void *mask; size_t size; } mask = { NULL, 8 };
	fd_set set;
	struct pollfd w = { p[1], POLLIN, 0 };
	struct timespec t = { 0, 20000000 };
	EQ(syscall(SYS_ppoll, &w, 1, &t, NULL, 8), 0);
	EQ(t.tv_sec, 0);
	EQ(t.tv_nsec, 0);
	t = (struct timespec){ 50, 0 };
	EQ(syscall(SYS_write, p[0], "hello", 5), 5);
	EQ(syscall(SYS_ppoll, &w, 1, &t, NULL, 8), 1);
	EQ(w.revents, POLLIN);
	CHECK(t.tv_sec > 0 && t.tv_sec < 50);
	FD_ZERO(&set);
	FD_SET(p[1], &set);
	t = (struct timespec){ 50, 0 };
	EQ(syscall(SYS_pselect6, p[1] + 1, &set, NULL, NULL, &t, &mask), 1);
	CHECK(t.tv_sec > 0 && t.tv_sec < 50 && FD_ISSET(p[1], &set));
#ifdef SYS_select
	struct timeval tv = { 50, 0 };
	EQ(syscall(SYS_select, p[1] + 1, &set, NULL, NULL, &tv), 1);
	CHECK(FD_ISSET(p[1], &set));
#endif
	EQ(syscall(SYS_preadv2, p[1], &v, 1, -1L, -1L, 0), 5);
	EQ(memcmp(b, "hello", 5), 0);
	EQ(syscall(SYS_pwritev2, p[1], &v, 1, -1L, -1L, 0), 5);
	int q[2];
	CHECK(!pipe(q));
	EQ(syscall(SYS_splice, p[0], NULL, q[1], NULL, 5, 0), 5);
	EQ(read(q[0], b, sizeof b), 5);
	close(q[0]), close(q[1]);
}
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

	kernel_forms(p);
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
