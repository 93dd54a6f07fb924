// A program waits by a system call instruction of its own, past libc, as Rust's rustix does (in the crates polling,
// async-io and smol). The library cannot intercept that, so its connections are the kernel's from the start.
#include "t.h"
#include <sys/syscall.h>

static inline __attribute__((always_inline)) long enter(long n, long a, long b, long c, long d, long e, long f)
{
#if defined(__x86_64__)
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	long r;
	__asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return r;
#else
	register long x8 __asm__("x8") = n, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c,
		x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;
	__asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
#endif
}
static int wait_for(int ep, struct epoll_event *ev, int ms)
{
	return enter(SYS_epoll_pwait, ep, (long)ev, 4, ms, 0, 8);
}

int main(void)
{
	t_init();
	int p[2], port;
	char b[8];
	struct epoll_event ev[4] = { 0 };
	int ep = epoll_create1(0), l = listen_on(&port);
	struct epoll_event e = { EPOLLIN, { .fd = l } };
	EQ(enter(SYS_epoll_ctl, ep, EPOLL_CTL_ADD, l, (long)&e, 0, 0), 0);
	p[0] = connect_to(port);
	EQ(wait_for(ep, ev, -1), 1);
	EQ(ev[0].data.fd, l);
	p[1] = accept(l, NULL, NULL);
	CHECK(p[1] >= 0);
	expect_on(p[0], "TCP", "own-system-calls");
	e.data.fd = p[1];
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, p[1], &e), 0);
	EQ(wait_for(ep, ev, 0), 0);
	send_all(p[0], "hello", 5);
	EQ(wait_for(ep, ev, -1), 1);
	EQ(ev[0].data.fd, p[1]);
	EQ(ev[0].events, EPOLLIN);
	recv_all(p[1], b, 5);
	// What it binds by itself is bound, and only that.
	int s = socket(AF_INET, SOCK_STREAM, 0), other = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof a;
	EQ(enter(SYS_bind, s, (long)&a, n, 0, 0, 0), 0);
	EQ(getsockname(s, (void *)&a, &n), 0);
	CHECK(a.sin_port);
	EQ(getsockname(other, (void *)&a, &n), 0);
	EQ(a.sin_port, 0);
	return t_ok("own_epoll");
}
