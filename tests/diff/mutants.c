// Does difftest notice? A preload library that makes world N slightly wrong, one fault at a time (MUTANT=1..).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
static int m(void)
{
	static int v = -1;
	if (v < 0)
		v = getenv("MUTANT") ? atoi(getenv("MUTANT")) : 0;
	return v;
}
#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
static int every(int n) { static int c; return ++c % n == 0; }
ssize_t recv(int fd, void *b, size_t n, int f)
{
	ssize_t r = NEXT(recv)(fd, b, n, f);
	if (m() == 1 && r > 100 && every(5)) ((char *)b)[r - 1] ^= 1;                 // one wrong byte
	if (m() == 2 && r < 0 && errno == ECONNRESET) return 0;                       // reset shown as end
	if (m() == 3 && r < 0 && errno == EAGAIN && n == 0) return 0;                 // recv of 0
	return r;
}
ssize_t read(int fd, void *b, size_t n)
{
	if (m() == 4 && n == 0) { errno = EAGAIN; return -1; }
	return NEXT(read)(fd, b, n);
}
ssize_t send(int fd, const void *b, size_t n, int f)
{
	return NEXT(send)(fd, b, n, m() == 5 ? f | MSG_NOSIGNAL : f);                 // no SIGPIPE
}
ssize_t recvmsg(int fd, struct msghdr *h, int f)
{
	ssize_t r = NEXT(recvmsg)(fd, h, f);
	if (m() == 6 && r >= 0) h->msg_namelen = 16;
	return r;
}
int poll(struct pollfd *p, nfds_t n, int t)
{
	int r = NEXT(poll)(p, n, t);
	for (nfds_t i = 0; i < n && r > 0; i++) {
		if (m() == 7) p[i].revents &= ~POLLRDHUP;
		if (m() == 8 && (p[i].revents & POLLERR)) p[i].revents &= ~POLLIN;
	}
	return r;
}
int epoll_wait(int e, struct epoll_event *v, int n, int t)
{
	static struct epoll_event last; static int have;
	if (m() == 9) usleep(100);                                                    // slow, but right: no fault
	int r = NEXT(epoll_wait)(e, v, n, t);
	if (m() == 10 && r > 0 && every(4)) return r - 1;                             // loses one event
	if (m() == 11 && r == 0 && have) { v[0] = last; have = 0; return 1; }         // an event too much
	if (r > 0) { last = v[0]; have = 1; }
	return r;
}
int epoll_ctl(int e, int op, int fd, struct epoll_event *v)
{
	struct epoll_event x = v ? *v : (struct epoll_event){ 0 };
	if (m() == 12) x.events &= ~EPOLLONESHOT;
	if (m() == 13 && op == EPOLL_CTL_MOD) { NEXT(epoll_ctl)(e, EPOLL_CTL_DEL, fd, NULL); op = EPOLL_CTL_ADD; } // MOD of an unknown fd succeeds
	return NEXT(epoll_ctl)(e, op, fd, &x);
}
int close(int fd)
{
	struct linger l = { 0, 0 };
	if (m() == 14) setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);           // SO_LINGER 0 forgotten
	return NEXT(close)(fd);
}
int shutdown(int fd, int how)
{
	return NEXT(shutdown)(fd, m() == 15 && how == SHUT_RDWR ? SHUT_WR : how);
}
int getsockopt(int fd, int l, int o, void *v, socklen_t *n)
{
	int r = NEXT(getsockopt)(fd, l, o, v, n);
	if (m() == 16 && l == SOL_SOCKET && o == SO_ERROR && r == 0 && *n == 4) *(int *)v = 0;
	return r;
}
int connect(int fd, const struct sockaddr *a, socklen_t n)
{
	int r = NEXT(connect)(fd, a, n);
	if (m() == 17 && r < 0 && errno == EINPROGRESS) return 0;
	return r;
}
int dup2(int a, int b)
{
	return m() == 18 && a == b ? (errno = EINVAL, -1) : NEXT(dup2)(a, b);
}
int select(int n, fd_set *r, fd_set *w, fd_set *x, struct timeval *t)
{
	int k = NEXT(select)(n, r, w, x, t);
	return m() == 19 && k > 1 ? k - 1 : k;
}
ssize_t writev(int fd, const struct iovec *v, int n)
{
	return NEXT(writev)(fd, v, m() == 20 && n > 3 ? 3 : n);                       // the last part is forgotten
}
