// Every call that takes an address, with one bad address at a time, on descriptors of every kind: the answers are those of the
// same program without NetACC, whether there is a TCP socket in the process or not. Addresses within structures count as well.
#include "t.h"
#include <dlfcn.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/prctl.h>
#include <sys/un.h>

// What an argument points to.
enum kind { NUMBER, FD, BYTES, IOV, MSG, MMSG, ADDR, LENGTH, INT, SECONDS, NANOS, POLLED, SET, MASK, MASK_PAIR, EVENT, OFFSET, LIMIT,
	TEXT, TEXTS, CLONE, UPDATE, FLOCK };
struct arg { enum kind kind; long value; };
#define N(v) { NUMBER, v }
#define P(kind) { kind, 0 }
// Flags of a call.
enum { GIVES_FD = 1, CHANGES = 2, NO_FD = 4 };
struct call { const char *name; long number; int flags; struct arg args[6]; };

static const struct call calls[] = {
	{ "read", SYS_read, 0, { P(FD), P(BYTES), N(4) } },
	{ "write", SYS_write, 0, { P(FD), P(BYTES), N(4) } },
	{ "readv", SYS_readv, 0, { P(FD), P(IOV), N(2) } },
	{ "writev", SYS_writev, 0, { P(FD), P(IOV), N(2) } },
	{ "preadv2", SYS_preadv2, 0, { P(FD), P(IOV), N(2), N(-1), N(-1), N(0) } },
	{ "pwritev2", SYS_pwritev2, 0, { P(FD), P(IOV), N(2), N(-1), N(-1), N(0) } },
	{ "sendto", SYS_sendto, 0, { P(FD), P(BYTES), N(4), N(MSG_NOSIGNAL), P(ADDR), N(16) } },
	{ "recvfrom", SYS_recvfrom, 0, { P(FD), P(BYTES), N(4), N(0), P(ADDR), P(LENGTH) } },
	{ "recvfrom PEEK", SYS_recvfrom, 0, { P(FD), P(BYTES), N(4), N(MSG_PEEK), P(ADDR), P(LENGTH) } },
	{ "sendmsg", SYS_sendmsg, 0, { P(FD), P(MSG), N(MSG_NOSIGNAL) } },
	{ "recvmsg", SYS_recvmsg, 0, { P(FD), P(MSG), N(0) } },
	{ "sendmmsg", SYS_sendmmsg, 0, { P(FD), P(MMSG), N(2), N(MSG_NOSIGNAL) } },
	{ "recvmmsg", SYS_recvmmsg, 0, { P(FD), P(MMSG), N(2), N(MSG_DONTWAIT), P(NANOS) } },
	{ "sendfile", SYS_sendfile, 0, { P(FD), N(-2), P(OFFSET), N(4) } },
	{ "splice from", SYS_splice, 0, { P(FD), P(OFFSET), N(-3), P(OFFSET), N(4), N(SPLICE_F_NONBLOCK) } },
	{ "splice to", SYS_splice, 0, { N(-4), P(OFFSET), P(FD), P(OFFSET), N(4), N(SPLICE_F_NONBLOCK) } },
	{ "accept", SYS_accept, GIVES_FD, { P(FD), P(ADDR), P(LENGTH) } },
	{ "accept4", SYS_accept4, GIVES_FD, { P(FD), P(ADDR), P(LENGTH), N(SOCK_CLOEXEC) } },
	{ "connect", SYS_connect, CHANGES, { P(FD), P(ADDR), N(16) } },
	{ "bind", SYS_bind, 0, { P(FD), P(ADDR), N(16) } },
	{ "getsockname", SYS_getsockname, 0, { P(FD), P(ADDR), P(LENGTH) } },
	{ "getpeername", SYS_getpeername, 0, { P(FD), P(ADDR), P(LENGTH) } },
	{ "getsockopt SO_ERROR", SYS_getsockopt, 0, { P(FD), N(SOL_SOCKET), N(SO_ERROR), P(INT), P(LENGTH) } },
	{ "getsockopt SO_TYPE", SYS_getsockopt, 0, { P(FD), N(SOL_SOCKET), N(SO_TYPE), P(INT), P(LENGTH) } },
	{ "getsockopt SO_RCVTIMEO", SYS_getsockopt, 0, { P(FD), N(SOL_SOCKET), N(SO_RCVTIMEO), P(SECONDS), P(LENGTH) } },
	{ "getsockopt SO_COOKIE", SYS_getsockopt, 0, { P(FD), N(SOL_SOCKET), N(SO_COOKIE), P(BYTES), P(LENGTH) } },
	{ "getsockopt IP_PKTOPTIONS", SYS_getsockopt, CHANGES, { P(FD), N(IPPROTO_IP), N(IP_PKTOPTIONS), P(BYTES), P(LENGTH) } },
	{ "getsockopt TCP_INFO", SYS_getsockopt, 0, { P(FD), N(IPPROTO_TCP), N(TCP_INFO), P(BYTES), P(LENGTH) } },
	{ "getsockopt TCP_NODELAY", SYS_getsockopt, 0, { P(FD), N(IPPROTO_TCP), N(TCP_NODELAY), P(INT), P(LENGTH) } },
	{ "getsockopt IP_TOS", SYS_getsockopt, 0, { P(FD), N(IPPROTO_IP), N(IP_TOS), P(INT), P(LENGTH) } },
	{ "setsockopt SO_KEEPALIVE", SYS_setsockopt, 0, { P(FD), N(SOL_SOCKET), N(SO_KEEPALIVE), P(INT), N(4) } },
	{ "setsockopt SO_SNDTIMEO", SYS_setsockopt, 0, { P(FD), N(SOL_SOCKET), N(SO_SNDTIMEO), P(SECONDS), N(16) } },
	{ "setsockopt SO_LINGER", SYS_setsockopt, 0, { P(FD), N(SOL_SOCKET), N(SO_LINGER), P(INT), N(8) } },
	{ "setsockopt TCP_NODELAY", SYS_setsockopt, 0, { P(FD), N(IPPROTO_TCP), N(TCP_NODELAY), P(INT), N(4) } },
	{ "setsockopt TCP_CONGESTION", SYS_setsockopt, 0, { P(FD), N(IPPROTO_TCP), N(TCP_CONGESTION), P(TEXT), N(5) } },
	{ "setsockopt IP_TOS", SYS_setsockopt, 0, { P(FD), N(IPPROTO_IP), N(IP_TOS), P(INT), N(4) } },
	{ "ioctl FIONREAD", SYS_ioctl, 0, { P(FD), N(FIONREAD), P(INT) } },
	{ "ioctl SIOCOUTQ", SYS_ioctl, 0, { P(FD), N(TIOCOUTQ), P(INT) } },
	{ "ioctl SIOCATMARK", SYS_ioctl, 0, { P(FD), N(0x8905), P(INT) } },
	{ "ioctl FIONBIO", SYS_ioctl, CHANGES, { P(FD), N(FIONBIO), P(INT) } },
	{ "fcntl F_GETLK", SYS_fcntl, 0, { P(FD), N(F_GETLK), P(FLOCK) } },
	{ "fcntl F_SETLK", SYS_fcntl, 0, { P(FD), N(F_SETLK), P(FLOCK) } },
	{ "fcntl F_GETOWN_EX", SYS_fcntl, 0, { P(FD), N(F_GETOWN_EX), P(LIMIT) } },
#ifdef SYS_poll
	{ "poll", SYS_poll, 0, { P(POLLED), N(1), N(0) } },
#endif
	{ "ppoll", SYS_ppoll, 0, { P(POLLED), N(1), P(NANOS), P(MASK), N(8) } },
#ifdef SYS_select
	{ "select", SYS_select, 0, { N(-5), P(SET), P(SET), P(SET), P(SECONDS) } },
#endif
	{ "pselect6", SYS_pselect6, 0, { N(-5), P(SET), P(SET), P(SET), P(NANOS), P(MASK_PAIR) } },
	{ "epoll_ctl ADD", SYS_epoll_ctl, 0, { N(-6), N(EPOLL_CTL_ADD), P(FD), P(EVENT) } },
	{ "epoll_ctl MOD", SYS_epoll_ctl, CHANGES, { N(-6), N(EPOLL_CTL_MOD), P(FD), P(EVENT) } },
#ifdef SYS_epoll_wait
	{ "epoll_wait", SYS_epoll_wait, 0, { P(FD), P(EVENT), N(3), N(0) } },
#endif
	{ "epoll_pwait", SYS_epoll_pwait, 0, { P(FD), P(EVENT), N(3), N(0), P(MASK), N(8) } },
	{ "epoll_pwait2", SYS_epoll_pwait2, 0, { P(FD), P(EVENT), N(3), P(NANOS), P(MASK), N(8) } },
	{ "setrlimit", SYS_setrlimit, CHANGES | NO_FD, { N(RLIMIT_NOFILE), P(LIMIT) } },
	{ "prlimit", SYS_prlimit64, CHANGES | NO_FD, { N(0), N(RLIMIT_NOFILE), P(LIMIT), P(LIMIT) } },
	{ "getrlimit", SYS_getrlimit, NO_FD, { N(RLIMIT_CORE), P(LIMIT) } },
	{ "mount", SYS_mount, NO_FD, { P(TEXT), P(TEXT), P(TEXT), N(0), P(TEXT) } },
	{ "mount 9p", SYS_mount, NO_FD, { P(TEXT), P(TEXT), { TEXT, 1 }, N(0), P(TEXT) } },
	{ "fsconfig", SYS_fsconfig, NO_FD, { N(0), N(1), { TEXT, 2 }, P(TEXT), N(0) } },
	{ "bpf", SYS_bpf, NO_FD, { N(2), P(UPDATE), N(32) } },
	{ "clone3", SYS_clone3, CHANGES | NO_FD, { P(CLONE), N(88) } },
	{ "execve", SYS_execve, CHANGES | NO_FD, { P(TEXT), P(TEXTS), P(TEXTS) } },
	{ "execveat", SYS_execveat, CHANGES | NO_FD, { N(AT_FDCWD), P(TEXT), P(TEXTS), P(TEXTS), N(0) } },
	{ "sigaction", SYS_rt_sigaction, CHANGES | NO_FD, { N(SIGUSR1), P(BYTES), P(BYTES), N(8) } },
	{ "capset", SYS_capset, CHANGES | NO_FD, { P(INT), P(BYTES) } },
	{ "chroot", SYS_chroot, NO_FD, { P(TEXT) } },
	{ "pivot_root", SYS_pivot_root, NO_FD, { P(TEXT), P(TEXT) } },
	{ "seccomp", SYS_seccomp, CHANGES | NO_FD, { N(1), N(0), P(BYTES) } },
	{ "seccomp TSYNC", SYS_seccomp, CHANGES | NO_FD, { N(1), N(1), P(BYTES) } },
	{ "prctl PR_SET_SECCOMP", SYS_prctl, CHANGES | NO_FD, { N(PR_SET_SECCOMP), N(2), P(BYTES) } },
	{ "io_uring_setup", SYS_io_uring_setup, CHANGES | NO_FD, { N(4), P(BYTES) } },
	{ "prctl", SYS_prctl, NO_FD, { N(PR_GET_PDEATHSIG), P(INT) } },
};

enum { CALLS = sizeof calls / sizeof *calls, PAGES = 8, SLOT = 2 * 4096, MOST = 80000 };
static char *good;             // two pages for each argument
static void *bad[7];           // no access, null, the first page, the end of a page, outside of user space (2), constant
static const char *const bads[] = { "no access", "null", "first page", "end of page", "kernel", "non-canonical", "constant" };
enum { NULL_BAD = 1, EDGE = 3, NON_CANONICAL = 5, CONSTANT = 6 };
enum { SOURCE = 2, PIPE_IN, PIPE_OUT, MOST_SET, INSTANCE }; // numbers above, negated
static int stand[8];
static sigjmp_buf back;
static int listener, port;

static volatile int is_inside; // within a call
static void crash(int s)
{
	if (!is_inside)
		die("the test itself fails");
	siglongjmp(back, s);
}

static struct iovec *buffers(char *p)
{
	struct iovec *v = (struct iovec *)p;
	v[0] = (struct iovec){ p + 1024, 2 }, v[1] = (struct iovec){ p + 1032, 2 };
	return v;
}
static struct msghdr message(char *p)
{
	memset(p + 2048, 0, 64);
	return (struct msghdr){ .msg_iov = buffers(p), .msg_iovlen = 2 };
}
// Fills in what an argument points to. The addresses in it are `inner`, which ends with NULL.
static void *fill(int at, struct arg a, int fd, void ***inner)
{
	static const char *const texts[] = { "/nonexistent/x", "9p", "rfdno" };
	char *p = good + at * SLOT;
	struct iovec *v = (struct iovec *)p;
	memset(p, 0, 4096);
	switch (a.kind) {
	case IOV:
		buffers(p);
		*inner++ = &v[0].iov_base, *inner++ = &v[1].iov_base;
		break;
	case MSG:
	case MMSG: {
		struct mmsghdr *m = (struct mmsghdr *)(p + 512);
		m[0].msg_hdr = m[1].msg_hdr = message(p);
		struct msghdr *last = &m[a.kind == MMSG].msg_hdr;
		*inner++ = (void **)&last->msg_iov, *inner++ = &v[1].iov_base;
		*inner++ = &last->msg_name, *inner++ = &last->msg_control;
		p += 512;
		break;
	}
	case ADDR: *(struct sockaddr_in *)p = addr4(port); break;
	case LENGTH: *(int *)p = 16; break;
	case INT: *(int *)p = 1; break;
	case POLLED: *(struct pollfd *)p = (struct pollfd){ fd, POLLIN | POLLOUT, 0 }; break;
	case SET:
		if (fd >= 0)
			FD_SET(fd, (fd_set *)p);
		break;
	case MASK_PAIR:
		((void **)p)[0] = p + 64, ((long *)p)[1] = 8;
		*inner++ = (void **)p;
		break;
	case EVENT: ((struct epoll_event *)p)->events = EPOLLIN; break;
	case LIMIT: getrlimit(RLIMIT_NOFILE, (struct rlimit *)p); break;
	case TEXT: strcpy(p, texts[a.value]); break;
	case TEXTS:
		((char **)p)[0] = strcpy(p + 64, "x");
		((char **)p)[1] = strcpy(p + 80, "y=5");
		*inner++ = (void **)p + 1;
		break;
	case UPDATE:
		((int *)p)[0] = -1;
		((void **)p)[1] = p + 64, ((void **)p)[2] = p + 80;
		*inner++ = (void **)p + 1, *inner++ = (void **)p + 2;
		break;
	default: break;
	}
	*inner = NULL;
	return p;
}
// A null pointer is no bad one where there need not be anything.
static int may_be_null(enum kind k)
{
	return k == ADDR || k == SECONDS || k == NANOS || k == SET || k == MASK || k == MASK_PAIR || k == OFFSET || k == LIMIT || k == TEXTS ||
	       k == MSG || k == MMSG || k == LENGTH;
}

typedef long (*function)(long, long, long, long, long, long);
static function by_name;
struct answer { int value, error; };
static struct answer answers[MOST], expected[MOST];
static int count;
static char labels[MOST][128];

// Makes a call by its number, or by libc's function of the name.
static void make(const struct call *c, long *v)
{
	struct answer a;
	errno = 0;
	is_inside = 1;
	int s = sigsetjmp(back, 1);
	if (!s) {
		a.value = (int)(by_name ? by_name(v[0], v[1], v[2], v[3], v[4], v[5]) :
					  syscall(c->number, v[0], v[1], v[2], v[3], v[4], v[5]));
		a.error = a.value < 0 ? errno : 0;
		if (c->number == SYS_clone3 && a.value == 0)
			_exit(0);
		if (a.value >= 0 && c->flags & GIVES_FD)
			close(a.value), a.value = 0;
	} else {
		a = (struct answer){ -2, s };
	}
	if (count >= MOST)
		die("%s", labels[MOST - 1]);
	is_inside = 0;
	answers[count++] = a;
}
static void label(const struct call *c, const char *what, int arg, int inner, int b)
{
	snprintf(labels[count], sizeof labels[0], "%s%s, %s, argument %d.%d: %s", c->name, by_name ? "()" : "", what, arg, inner, bads[b]);
}

enum { NO_NUMBER = -7 };
struct made { const char *what; int fd, other; }; // other: the other end
static void (*renew)(struct made *);
static int (*look)(struct made *); // what a call has left behind
static void emptied(struct made *);

static void one(const struct call *c, struct made *m, int at, int in, int b)
{
	long v[6];
	void **inner[6][6], *p[6];
	if (renew)
		renew(m);
	memset((char *)bad[EDGE], 0, 4);
	for (int i = 0; i < 6; i++) {
		struct arg a = c->args[i];
		p[i] = a.kind <= FD ? NULL : fill(i, a, m->fd, inner[i]);
		v[i] = a.kind == FD ? m->fd : a.kind != NUMBER ? (long)p[i] : a.value < -1 && a.value >= -INSTANCE ? stand[-a.value] : a.value;
	}
	if (in == 0) {
		v[at] = (long)bad[b];
	} else {
		*inner[at][in - 1] = bad[b];
		struct msghdr *h = &((struct mmsghdr *)p[at])[c->args[at].kind == MMSG].msg_hdr;
		if (c->args[at].kind == MSG || c->args[at].kind == MMSG)
			h->msg_namelen = h->msg_name ? 16 : 0, h->msg_controllen = h->msg_control ? 32 : 0;
	}
	label(c, m->what, at, in, b);
	make(c, v);
	if (look) {
		if (count >= MOST)
			die("%s", labels[MOST - 1]);
		label(c, m->what, at, in, b);
		strcat(labels[count], ", afterwards");
		answers[count++] = (struct answer){ look(m), 0 };
	}
}
static void all_of(const struct call *c, struct made *m)
{
	void **inner[6];
	for (int at = 0; at < 6; at++) {
		enum kind k = c->args[at].kind;
		if (k <= FD)
			continue;
		fill(at, c->args[at], m->fd, inner);
		int deep = 0;
		while (inner[deep])
			deep++;
		for (int in = 0; in <= deep; in++)
			for (int b = 0; b <= CONSTANT; b++) {
				if (b == NULL_BAD && (may_be_null(k) || c->flags & CHANGES))
					continue;
				if (b == CONSTANT && c->flags & CHANGES)
					continue;
				// Where there is nothing to read, kernels differ in what they make of it.
				if (b == NON_CANONICAL && renew == emptied)
					continue;
				one(c, m, at, in, b);
			}
	}
}
static char has[CALLS]; // whether libc has the function
static function libcs(unsigned i)
{
	char name[32];
	sscanf(calls[i].name, "%31s", name);
	return (function)dlsym(RTLD_DEFAULT, name);
}
static void every_call(struct made *m)
{
	for (unsigned i = 0; i < CALLS; i++) {
		if (!(calls[i].flags & NO_FD) != (m->fd != NO_NUMBER))
			continue;
		by_name = NULL;
		all_of(&calls[i], m);
		by_name = has[i] ? libcs(i) : NULL;
		if (by_name)
			all_of(&calls[i], m);
	}
}
// A connection has eight bytes to read and room for more, and what was sent is read.
static void filled(struct made *m)
{
	char b[64];
	int n = 0;
	nonblock(m->fd);
	while (recv(m->other, b, sizeof b, MSG_DONTWAIT) > 0)
		;
	EQ(ioctl(m->fd, FIONREAD, &n), 0);
	if (n < 8)
		send_all(m->other, "abcdefgh", 8 - n);
	EQ(ready(m->fd, POLLIN, 10000) & POLLIN, POLLIN);
}
// One has nothing to read.
static void emptied(struct made *m)
{
	char b[64];
	nonblock(m->fd);
	while (recv(m->fd, b, sizeof b, 0) > 0 || recv(m->other, b, sizeof b, MSG_DONTWAIT) > 0)
		;
}
static int error_of(struct made *m)
{
	int e = -1;
	socklen_t n = sizeof e;
	getsockopt(m->fd, SOL_SOCKET, SO_ERROR, &e, &n);
	return e;
}
static int is_waited_at(struct made *m)
{
	return ready(m->fd, POLLIN, 0);
}
static void fresh(struct made *m)
{
	if (m->fd >= 0)
		close(m->fd);
	m->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
}
// A listener at which one connect waits.
static void visited(struct made *m)
{
	int s;
	nonblock(m->fd);
	while ((s = accept(m->fd, NULL, NULL)) >= 0)
		close(s);
	close(m->other);
	m->other = connect_to(port_of(m->fd));
	EQ(ready(m->fd, POLLIN, 10000), POLLIN);
}
static void pipe_filled(struct made *m)
{
	int n;
	EQ(ioctl(m->fd, FIONREAD, &n), 0);
	if (n < 8)
		EQ(write(m->other, "abcdefgh", 8 - n), 8 - n);
}
static void run(struct made m, void (*before)(struct made *))
{
	renew = before;
	every_call(&m);
	if (m.fd >= 0)
		close(m.fd);
	if (m.other >= 0)
		close(m.other);
}
static void others(void)
{
	int u[2], p[2], ep = epoll_create1(0);
	struct epoll_event e = { EPOLLIN, { 0 } };
	EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, u), 0);
	EQ(pipe(p), 0);
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, stand[PIPE_OUT], &e), 0);
	run((struct made){ "UNIX", u[0], u[1] }, filled);
	run((struct made){ "pipe", p[0], p[1] }, pipe_filled);
	run((struct made){ "epoll", ep, -1 }, NULL);
	run((struct made){ "no number", -1, -1 }, NULL);
	run((struct made){ "no descriptor", NO_NUMBER, -1 }, NULL);
}
static void sockets(void)
{
	int p[2], ep = epoll_create1(0), l, n;
	struct epoll_event e = { EPOLLIN | EPOLLOUT, { 0 } };
	pair(p);
	look = error_of;
	for (int i = 0; i < 2; i++) {
		run((struct made){ i ? "server's end" : "client's end", p[i] < 0 ? -1 : dup(p[i]), dup(p[!i]) }, filled);
		run((struct made){ i ? "server's empty end" : "client's empty end", dup(p[i]), dup(p[!i]) }, emptied);
	}
	look = NULL;
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, p[0], &e), 0);
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, p[1], &e), 0);
	run((struct made){ "epoll with TCP", ep, -1 }, NULL);
	expect_shm(p[0]);
	run((struct made){ "socket", -1, -1 }, fresh);
	l = nonblock(listen_on(&n));
	look = is_waited_at;
	run((struct made){ "listener", l, connect_to(n) }, visited);
	look = NULL;
	close(p[0]), close(p[1]);
}
static void work(void)
{
	struct sigaction sa = { .sa_handler = crash, .sa_flags = SA_NODEFER };
	sigaction(SIGSEGV, &sa, NULL);
	sigaction(SIGBUS, &sa, NULL);
	good = mmap(NULL, PAGES * SLOT + 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(good != MAP_FAILED);
	char *end = good + PAGES * SLOT;
	void *values[] = { end + 4096, NULL, (void *)8, end + 4096 - 4, (void *)-4096L, (void *)(1L << 62), end + 2 * 4096 };
	memcpy(bad, values, sizeof bad);
	EQ(mprotect(end + 4096, 4096, PROT_NONE), 0);
	EQ(mprotect(end + 2 * 4096, 4096, PROT_READ), 0);
	stand[SOURCE] = open("/proc/self/exe", O_RDONLY);
	int p[2], q[2];
	EQ(pipe(p), 0);
	EQ(pipe(q), 0);
	EQ(write(q[1], "abcdefgh", 8), 8);
	nonblock(p[1]);
	stand[PIPE_IN] = p[1], stand[PIPE_OUT] = q[0], stand[MOST_SET] = 64, stand[INSTANCE] = epoll_create1(0);
	others();
	listener = listen_on(&port);
	sockets();
	others();
}
static void put(int fd, const void *b, size_t n)
{
	for (ssize_t r; n; b = (const char *)b + r, n -= r)
		CHECK((r = write(fd, b, n)) > 0);
}
int main(int argc, char **argv)
{
	int number, st;
	signal(SIGPIPE, SIG_IGN);
	if (argc > 1) {
		unsetenv("NETACC_EXPECT");
		struct sig s = outsiders(argv, &number);
		for (unsigned i = 0; i < CALLS; i++)
			has[i] = libcs(i) != NULL;
		work();
		put(s.w, has, sizeof has);
		put(s.w, answers, count * sizeof *answers);
		return 0;
	}
	t_init();
	struct sig a, b;
	sigpair(&a, &b);
	pid_t pid = fork_child();
	if (!pid)
		go_outside(0, b);
	close(b.w);
	EQ(read(a.r, has, sizeof has), sizeof has);
	size_t got = 0;
	for (ssize_t r; (r = read(a.r, (char *)expected + got, sizeof expected - got)) > 0;)
		got += r;
	EQ(waitpid(pid, &st, 0), pid);
	EQ(st, 0);
	work();
	EQ(got / sizeof *answers, count);
	int wrong = 0;
	for (int i = 0; i < count; i++) {
		struct answer is = answers[i], was = expected[i];
		// libc's functions read some of the memory themselves.
		if ((is.value == was.value && is.error == was.error) || was.value == -2)
			continue;
		if (++wrong <= 60)
			fprintf(stderr, "%s: %d %s, not %d %s\n", labels[i], is.value, is.value == -2 ? strsignal(is.error) : strerror(is.error),
				was.value, was.value == -2 ? strsignal(was.error) : strerror(was.error));
	}
	if (wrong)
		die("%d of %d answers differ", wrong, count);
	return t_ok("efault");
}
