// Calls with pointers into pages without access fail with EFAULT, as in the kernel, on connections, listeners, epoll
// instances and descriptors that are not TCP sockets, and no byte is lost.
#include "t.h"
#include <sys/mman.h>
#include <sys/syscall.h>
static char *page; // a page that can be used; what follows it cannot
static void *none; // nothing can be done there
static void *constant; // can be read, and not written
static void others(void)
{
	int p[2], u[2], ep = epoll_create1(0);
	struct epoll_event e = { EPOLLIN, { 0 } };
	EQ(pipe(p), 0);
	EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, u), 0);
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, p[0], &e), 0);
	struct pollfd f = { p[0], POLLIN, 0 };
	struct timespec t = { 0, 0 };
	FAILS(select(p[0] + 1, none, NULL, NULL, &(struct timeval){ 0, 0 }), EFAULT);
	FAILS(pselect(p[0] + 1, NULL, none, NULL, &t, NULL), EFAULT);
	FAILS(poll(none, 1, 0), EFAULT);
	FAILS(poll((void *)(page + 4096 - 8), 2, 0), EFAULT);
	FAILS(ppoll(none, 1, &t, NULL), EFAULT);
	FAILS(ppoll(&f, 1, NULL, none), EFAULT);
	FAILS(syscall(SYS_epoll_pwait2, ep, &e, 1, none, 0, 8), EFAULT);
	FAILS(epoll_ctl(ep, EPOLL_CTL_ADD, u[0], none), EFAULT);
	FAILS(epoll_ctl(ep, EPOLL_CTL_MOD, p[0], none), EFAULT);
	EQ(epoll_ctl(ep, EPOLL_CTL_DEL, p[0], none), 0);
	FAILS(sendmsg(u[0], none, 0), EFAULT);
	FAILS(syscall(SYS_sendmmsg, u[0], none, 1, 0), EFAULT);
	char ctl[] = { 1 };
	struct msghdr m = { .msg_control = none, .msg_controllen = 32, .msg_iov = &(struct iovec){ ctl, 1 }, .msg_iovlen = 1 };
	FAILS(sendmsg(u[0], &m, 0), EFAULT);
	FAILS(connect(u[0], none, 16), EFAULT);
	close(p[0]), close(p[1]), close(u[0]), close(u[1]), close(ep);
}
static void unconnected(void)
{
	char *argv[] = { "x", none, NULL };
	FAILS(execve("/bin/true", argv, NULL), EFAULT);
	FAILS(execve("/bin/true", none, NULL), EFAULT);
	int s = socket(AF_INET, SOCK_STREAM, 0);
	FAILS(connect(s, none, 16), EFAULT);
	FAILS(bind(s, none, 16), EFAULT);
	FAILS(sendmsg(s, none, 0), EFAULT);
	FAILS(setsockopt(s, SOL_SOCKET, SO_KEEPALIVE, none, 4), EFAULT);
	FAILS(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, none, sizeof(struct timeval)), EFAULT);
	FAILS(getsockopt(s, IPPROTO_TCP, TCP_NODELAY, page, none), EFAULT);
	close(s);
}
static void writes(int c, int s)
{
	struct iovec v[] = { { "abc", 3 }, { none, 3 } };
	struct msghdr m = { .msg_iov = v + 1, .msg_iovlen = 1 };
	char got[8];
	FAILS(write(c, none, 10), EFAULT);
	FAILS(send(c, none, 200000, MSG_DONTWAIT), EFAULT);
	FAILS(write(c, page + 4096 - 10, 20), EFAULT);
	FAILS(writev(c, none, 2), EFAULT);
	FAILS(sendmsg(c, none, 0), EFAULT);
	FAILS(sendmsg(c, &m, 0), EFAULT);
	m.msg_iov = none;
	FAILS(sendmsg(c, &m, 0), EFAULT);
	FAILS(sendto(c, "x", 1, 0, none, 16), EFAULT);
	FAILS(sendto(c, "x", 1, 0, (void *)page, 1000), EINVAL);
	EQ(writev(c, v, 1), 3);
	recv_all(s, got, 3);
	EQ(memcmp(got, "abc", 3), 0);
	FAILS(recv(s, got, 8, MSG_DONTWAIT), EAGAIN);
}
static void reads(int c, int s)
{
	struct iovec v = { none, 10 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };
	char got[8];
	int n = 0;
	send_all(s, "defghij", 7);
	EQ(ready(c, POLLIN, -1), POLLIN);
	FAILS(read(c, none, 10), EFAULT);
	FAILS(recv(c, constant, 10, MSG_PEEK), EFAULT);
	FAILS(read(c, page + 4096 - 3, 20), EFAULT);
	FAILS(readv(c, none, 1), EFAULT);
	FAILS(readv(c, &v, 1), EFAULT);
	FAILS(recvmsg(c, &m, 0), EFAULT);
	FAILS(recvmsg(c, none, 0), EFAULT);
	FAILS(ioctl(c, FIONREAD, none), EFAULT);
	// A buffer is used as far as there are bytes.
	EQ(read(c, page + 4096 - 7, 20), 7);
	EQ(memcmp(page + 4096 - 7, "defghij", 7), 0);
	send_all(s, "k", 1);
	EQ(ready(c, POLLIN, -1), POLLIN);
	EQ(recv(c, got, 8, 0), 1);
	FAILS(setsockopt(c, IPPROTO_TCP, TCP_NODELAY, none, 4), EFAULT);
	FAILS(setsockopt(c, SOL_SOCKET, SO_LINGER, none, 8), EFAULT);
	FAILS(getsockopt(c, IPPROTO_TCP, TCP_NODELAY, page, none), EFAULT);
	socklen_t k = 4;
	FAILS(getsockopt(c, IPPROTO_TCP, TCP_NODELAY, none, &k), EFAULT);
	FAILS(getpeername(c, (void *)page, none), EFAULT);
	k = 16;
	FAILS(getsockname(c, none, &k), EFAULT);
	EQ(ioctl(c, FIONREAD, &n), 0);
	EQ(n, 0);
}
static void waits(int c, int s)
{
	int ep = epoll_create1(0);
	struct epoll_event e = { EPOLLIN, { .fd = c } };
	struct pollfd f = { c, POLLIN, 0 };
	fd_set set;
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, c, &e), 0);
	FAILS(epoll_ctl(ep, EPOLL_CTL_MOD, c, none), EFAULT);
	EQ(epoll_wait(ep, none, 1, 0), 0);
	send_all(s, "x", 1);
	EQ(ready(c, POLLIN, -1), POLLIN);
	FAILS(epoll_wait(ep, none, 1, -1), EFAULT);
	EQ(epoll_wait(ep, &e, 1, -1), 1);
	FAILS(poll(none, 1, 0), EFAULT);
	FAILS(ppoll(&f, 1, NULL, none), EFAULT);
	FD_ZERO(&set);
	FD_SET(c, &set);
	FAILS(select(c + 1, none, NULL, NULL, NULL), EFAULT);
	FAILS(select(c + 1, constant, NULL, NULL, &(struct timeval){ 1, 0 }), EFAULT);
	EQ(select(c + 1, &set, NULL, NULL, NULL), 1);
	close(ep);
}
// Another process that has the connection passes it on, so that it becomes the kernel's: a write of ours finds that out.
static void moved(void)
{
	int p[2], u[2];
	char b[2];
	void *const first_page = (void *)8;
	pair(p);
	EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, u), 0);
	pid_t kid = fork_child();
	if (!kid) {
		pass_fd(u[0], p[0]);
		_exit(0);
	}
	reap(kid);
	FAILS(send(p[0], first_page, 5, MSG_NOSIGNAL), EFAULT);
	FAILS(send(p[0], none, 5, MSG_NOSIGNAL), EFAULT);
	send_all(p[0], "ab", 2);
	recv_all(p[1], b, 2);
	FAILS(recv(p[1], b, 1, MSG_DONTWAIT), EAGAIN); // no byte of what could not be read
	close(p[0]), close(p[1]), close(u[0]), close(u[1]);
}
int main(void)
{
	t_init();
	page = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(page != MAP_FAILED);
	none = page + 4096, constant = page + 2 * 4096;
	EQ(mprotect(none, 4096, PROT_NONE), 0);
	EQ(mprotect(constant, 4096, PROT_READ), 0);
	others();
	unconnected();
	int p[2];
	pair(p);
	expect_shm(p[0]);
	others();
	for (int i = 0; i < 2; i++) {
		writes(p[i], p[!i]);
		reads(p[i], p[!i]);
	}
	waits(p[0], p[1]);
	expect_shm(p[0]);
	int port, l = listen_on(&port), c = connect_to(port);
	socklen_t n = 16;
	(void)c;
	FAILS(accept(l, none, &n), EFAULT);
	moved();
	return t_ok("bad_pointers");
}
