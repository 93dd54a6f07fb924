// The two worlds. N: ordinary libc calls (accelerated under the library).
// K: raw system calls, which nothing intercepts (the kernel's own TCP).
#ifndef WORLD_H
#define WORLD_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include "../apps/host.h"

enum { N, K };

// syscall(2) without libc's symbol, which the library intercepts as well.
static inline long direct(long n, ...)
{
	va_list l;
	va_start(l, n);
	long v[6], r;
	for (int i = 0; i < 6; i++)
		v[i] = va_arg(l, long);
	va_end(l);
#ifdef __x86_64__
	register long d __asm__("r10") = v[3], e __asm__("r8") = v[4], f __asm__("r9") = v[5];
	__asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(v[0]), "S"(v[1]), "d"(v[2]), "r"(d), "r"(e), "r"(f)
			 : "rcx", "r11", "memory");
#else
	register long x8 __asm__("x8") = n, a __asm__("x0") = v[0], b __asm__("x1") = v[1], c __asm__("x2") = v[2],
		      d __asm__("x3") = v[3], e __asm__("x4") = v[4], f __asm__("x5") = v[5];
	__asm__ volatile("svc 0" : "+r"(a) : "r"(x8), "r"(b), "r"(c), "r"(d), "r"(e), "r"(f) : "memory");
	r = a;
#endif
	if (r < 0 && r > -4096) {
		errno = (int)-r;
		return -1;
	}
	return r;
}

#define WCALL(name, params, lib, sys) \
	static inline long name params { return w == N ? (long)(lib) : direct sys; }

WCALL(w_socket, (int w, int d, int t, int p), socket(d, t, p), (SYS_socket, d, t, p))
WCALL(w_bind, (int w, int f, const void *a, socklen_t l), bind(f, a, l), (SYS_bind, f, a, l))
WCALL(w_listen, (int w, int f, int b), listen(f, b), (SYS_listen, f, b))
WCALL(w_connect, (int w, int f, const void *a, socklen_t l), connect(f, a, l), (SYS_connect, f, a, l))
WCALL(w_accept, (int w, int f, void *a, socklen_t *l), accept(f, a, l), (SYS_accept, f, a, l))
WCALL(w_accept4, (int w, int f, void *a, socklen_t *l, int g), accept4(f, a, l, g), (SYS_accept4, f, a, l, g))
WCALL(w_close, (int w, int f), close(f), (SYS_close, f))
WCALL(w_shutdown, (int w, int f, int h), shutdown(f, h), (SYS_shutdown, f, h))
WCALL(w_send, (int w, int f, const void *b, size_t n, int g), send(f, b, n, g), (SYS_sendto, f, b, n, g, 0, 0))
WCALL(w_sendto, (int w, int f, const void *b, size_t n, int g, const void *a, socklen_t l),
      sendto(f, b, n, g, a, l), (SYS_sendto, f, b, n, g, a, l))
WCALL(w_write, (int w, int f, const void *b, size_t n), write(f, b, n), (SYS_write, f, b, n))
WCALL(w_writev, (int w, int f, const struct iovec *v, int n), writev(f, v, n), (SYS_writev, f, v, n))
WCALL(w_sendmsg, (int w, int f, const struct msghdr *m, int g), sendmsg(f, m, g), (SYS_sendmsg, f, m, g))
WCALL(w_recv, (int w, int f, void *b, size_t n, int g), recv(f, b, n, g), (SYS_recvfrom, f, b, n, g, 0, 0))
WCALL(w_recvfrom, (int w, int f, void *b, size_t n, int g, void *a, socklen_t *l),
      recvfrom(f, b, n, g, a, l), (SYS_recvfrom, f, b, n, g, a, l))
WCALL(w_read, (int w, int f, void *b, size_t n), read(f, b, n), (SYS_read, f, b, n))
WCALL(w_readv, (int w, int f, const struct iovec *v, int n), readv(f, v, n), (SYS_readv, f, v, n))
WCALL(w_recvmsg, (int w, int f, struct msghdr *m, int g), recvmsg(f, m, g), (SYS_recvmsg, f, m, g))
WCALL(w_sendfile, (int w, int o, int i, off_t *p, size_t n), sendfile(o, i, p, n), (SYS_sendfile, o, i, p, n))
WCALL(w_getsockopt, (int w, int f, int l, int o, void *v, socklen_t *n), getsockopt(f, l, o, v, n),
      (SYS_getsockopt, f, l, o, v, n))
WCALL(w_setsockopt, (int w, int f, int l, int o, const void *v, socklen_t n), setsockopt(f, l, o, v, n),
      (SYS_setsockopt, f, l, o, v, n))
WCALL(w_getsockname, (int w, int f, void *a, socklen_t *l), getsockname(f, a, l), (SYS_getsockname, f, a, l))
WCALL(w_getpeername, (int w, int f, void *a, socklen_t *l), getpeername(f, a, l), (SYS_getpeername, f, a, l))
WCALL(w_fcntl, (int w, int f, int c, long a), fcntl(f, c, a), (SYS_fcntl, f, c, a))
WCALL(w_ioctl, (int w, int f, unsigned long c, void *a), ioctl(f, c, a), (SYS_ioctl, f, c, a))
WCALL(w_dup, (int w, int f), dup(f), (SYS_dup, f))
WCALL(w_dup2, (int w, int f, int t), dup2(f, t), (SYS_dup2, f, t))
WCALL(w_dup3, (int w, int f, int t, int g), dup3(f, t, g), (SYS_dup3, f, t, g))
WCALL(w_poll, (int w, struct pollfd *p, unsigned n, int t), poll(p, n, t), (SYS_poll, p, n, t))
WCALL(w_epcreate, (int w, int g), epoll_create1(g), (SYS_epoll_create1, g))
WCALL(w_epctl, (int w, int e, int o, int f, struct epoll_event *v), epoll_ctl(e, o, f, v), (SYS_epoll_ctl, e, o, f, v))
WCALL(w_epwait, (int w, int e, struct epoll_event *v, int n, int t), epoll_wait(e, v, n, t),
      (SYS_epoll_wait, e, v, n, t))
WCALL(w_eppwait, (int w, int e, struct epoll_event *v, int n, int t, const sigset_t *s),
      epoll_pwait(e, v, n, t, s), (SYS_epoll_pwait, e, v, n, t, s, 8))
WCALL(w_select, (int w, int n, fd_set *r, fd_set *x, fd_set *e, struct timeval *t), select(n, r, x, e, t),
      (SYS_select, n, r, x, e, t))
WCALL(w_eventfd, (int w, unsigned v, int g), eventfd(v, g), (SYS_eventfd2, v, g))

static inline long w_ppoll(int w, struct pollfd *p, unsigned n, int ms, const sigset_t *s)
{
	struct timespec t = { ms / 1000, (ms % 1000) * 1000000L };
	return w == N ? ppoll(p, n, &t, s) : direct(SYS_ppoll, p, n, &t, s, 8L);
}

static inline long w_pselect(int w, int n, fd_set *r, fd_set *x, fd_set *e, int ms, const sigset_t *s)
{
	struct timespec t = { ms / 1000, (ms % 1000) * 1000000L };
	struct { const sigset_t *s; size_t n; } arg = { s, 8 };
	return w == N ? pselect(n, r, x, e, &t, s) : direct(SYS_pselect6, n, r, x, e, &t, &arg);
}
#endif
