// A call with a time-out ends when that is over, however often an operator has the call made anew meanwhile, and not before.
#include "t.h"
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
enum { MS = 300 };
static const struct timespec LIMIT = { 0, MS * 1000000L };
static int p[2], ep, l;
static double begun;

// The clock of a time-out may be coarse: one tick of 10 ms is allowed.
static void waited(int line)
{
	double ms = (now() - begun) * 1000;
	if (ms < MS - 10)
		t_die(line, "ended after %.0f of %d ms", ms, MS);
	begun = now();
}
#define ENDS(call, result) do { begun = now(); EQ(call, result); waited(__LINE__); } while (0)
#define EXPIRES(call) do { begun = now(); FAILS(call, EAGAIN); waited(__LINE__); } while (0)
// A call that may find room again takes that first.
#define FILLS(call) do { do begun = now(); while ((call) > 0); EQ(errno, EAGAIN); waited(__LINE__); } while (0)

static fd_set *named(fd_set *s)
{
	FD_ZERO(s);
	FD_SET(p[0], s);
	return s;
}

static void in_arguments(void)
{
	struct pollfd f = { p[0], POLLIN, 0 };
	struct epoll_event ev;
	struct timespec t;
	struct timeval v;
	fd_set s;
	ENDS(poll(&f, 1, MS), 0);
	ENDS(ppoll(&f, 1, &LIMIT, NULL), 0);
	v = (struct timeval){ 0, MS * 1000 };
	ENDS(select(p[0] + 1, named(&s), NULL, NULL, &v), 0);
#ifdef __GLIBC__
	EQ(v.tv_sec + v.tv_usec, 0);
#endif
	ENDS(pselect(p[0] + 1, named(&s), NULL, NULL, &LIMIT, NULL), 0);
	ENDS(epoll_wait(ep, &ev, 1, MS), 0);
	ENDS(epoll_pwait(ep, &ev, 1, MS, NULL), 0);
	ENDS(syscall(SYS_epoll_pwait, ep, &ev, 1, MS, NULL, 8), 0);
	ENDS(syscall(SYS_epoll_pwait2, ep, &ev, 1, &LIMIT, NULL, 8), 0);
	t = LIMIT;
	ENDS(syscall(SYS_ppoll, &f, 1, &t, NULL, 8), 0);
	EQ(t.tv_sec + t.tv_nsec, 0);
	t = LIMIT;
	ENDS(syscall(SYS_pselect6, p[0] + 1, named(&s), NULL, NULL, &t, NULL), 0);
	EQ(t.tv_sec + t.tv_nsec, 0);
}

static void limited(int fd, int which)
{
	struct timeval v = { 0, MS * 1000 };
	EQ(setsockopt(fd, SOL_SOCKET, which, &v, sizeof v), 0);
}

static void drained(void)
{
	char big[65536];
	while (recv(p[0], big, sizeof big, MSG_DONTWAIT) > 0)
		;
}

static void of_sockets(void)
{
	char c, big[65536] = { 0 };
	struct iovec v = { &c, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };
	struct mmsghdr mm = { .msg_hdr = m };
	limited(p[0], SO_RCVTIMEO);
	EXPIRES(recv(p[0], &c, 1, 0));
	EXPIRES(read(p[0], &c, 1));
	EXPIRES(readv(p[0], &v, 1));
	EXPIRES(recvmsg(p[0], &m, 0));
	EXPIRES(recvmmsg(p[0], &mm, 1, 0, NULL));
	EXPIRES(recvmmsg(p[0], &mm, 1, 0, &(struct timespec){ 1, 0 }));
	EXPIRES(syscall(SYS_recvfrom, p[0], &c, 1, 0, NULL, NULL));
	EXPIRES(syscall(SYS_recvmsg, p[0], &m, 0));
	limited(l, SO_RCVTIMEO);
	EXPIRES(accept(l, NULL, NULL));
	EXPIRES(accept4(l, NULL, NULL, SOCK_CLOEXEC));
	int file = open("/proc/self/exe", O_RDONLY), q[2];
	CHECK(file >= 0 && !pipe(q));
	limited(p[0], SO_RCVTIMEO);
	EXPIRES(splice(p[0], NULL, q[1], NULL, 1, 0));
	limited(p[1], SO_SNDTIMEO);
	FILLS(sendfile(p[1], file, &(off_t){ 0 }, 4096));
	EQ(write(q[1], big, 4096), 4096);
	FILLS(splice(q[0], NULL, p[1], NULL, 4096, 0));
	drained();
	limited(p[1], SO_SNDTIMEO);
	FILLS(write(p[1], big, sizeof big));
	v = (struct iovec){ big, sizeof big };
	FILLS(sendmsg(p[1], &m, 0));
}

int main(void)
{
	int port;
	t_init();
	pair(p);
	l = listen_on(&port);
	ep = epoll_create1(0);
	struct epoll_event ev = { EPOLLIN, { .fd = p[0] } };
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, p[0], &ev), 0);
	in_arguments();
	of_sockets();
	return t_ok("time_left");
}
