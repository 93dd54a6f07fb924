// The calls whose instructions are counted (see step.c): calls HELPER PORT MODE.
//
// None of them is on an accelerated connection. HELPER is a UNIX socket to a process without NetACC that connects to
// the port it is told; one listens on PORT, sends some bytes and reads nothing. MODE is `idle`: the program has no TCP
// socket, or `busy`: it has an accelerated connection, plain ones and an epoll instance, before it begins.
#include "../apps/t.h"
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/un.h>

static void begin(const char *name)
{
#if defined __x86_64__
	__asm__ volatile("int3" ::"D"(name) : "memory");
#else
	register const char *first __asm__("x0") = name;
	__asm__ volatile("brk #0" ::"r"(first) : "memory");
#endif
}

// What a call does at its first time (symbols, memory) is not what it costs: the least of the counts is taken.
#define TIMES 4
#define CALL(name, before, call, good)                                                                                \
	for (int time_ = 0; time_ < TIMES; time_++) {                                                                 \
		before;                                                                                               \
		begin(name);                                                                                          \
		long r = (call);                                                                                      \
		begin(NULL);                                                                                          \
		if (!(good))                                                                                          \
			die("%s gives %ld", name, r);                                                                 \
	}

// What the library looks at lies within one page, wherever the stack begins: a second page costs some instructions more.
#define ONE_PAGE _Alignas(128)
static char buf[64];
static ONE_PAGE struct iovec vec = { buf, 4 };
static struct sockaddr_storage from;
static socklen_t from_len;

static void put(int fd) { EQ(write(fd, "12345678", 8), 8); }

static void bytes(const char *kind[4], int to, int in)
{
	CALL(kind[0], , write(to, buf, 4), r == 4);
	CALL(kind[1], , writev(to, &vec, 1), r == 4);
	CALL(kind[2], put(to), read(in, buf, 4), r == 4);
	CALL(kind[3], put(to), readv(in, &vec, 1), r == 4);
}

static void messages(const char *kind[6], int to, int in)
{
	ONE_PAGE struct msghdr m = { .msg_iov = &vec, .msg_iovlen = 1 };
	CALL(kind[0], , send(to, buf, 4, 0), r == 4);
	CALL(kind[1], , sendto(to, buf, 4, 0, NULL, 0), r == 4);
	CALL(kind[2], , sendmsg(to, &m, 0), r == 4);
	CALL(kind[3], put(to), recv(in, buf, 4, 0), r == 4);
	CALL(kind[4], put(to); from_len = sizeof from, recvfrom(in, buf, 4, 0, (struct sockaddr *)&from, &from_len), r == 4);
	CALL(kind[5], put(to), recvmsg(in, &m, 0), r == 4);
}

static void waits(int ready, int silent)
{
	ONE_PAGE struct pollfd p = { ready, POLLIN, 0 };
	ONE_PAGE struct pollfd many[8];
	for (int i = 0; i < 8; i++)
		many[i] = (struct pollfd){ i ? silent : ready, POLLIN, 0 };
	ONE_PAGE struct timespec ms = { 0, 1000000 };
	ONE_PAGE fd_set set;
	CALL("poll, 1 pipe", , poll(&p, 1, 1000), r == 1);
	CALL("poll, 8 pipes", , poll(many, 8, 1000), r == 1);
	CALL("poll, nothing there, time-out 0", p.fd = silent, poll(&p, 1, 0), r == 0);
	p.fd = ready;
	CALL("ppoll, 1 pipe", , ppoll(&p, 1, &ms, NULL), r == 1);
	CALL("select, 1 pipe", FD_ZERO(&set); FD_SET(ready, &set), select(ready + 1, &set, NULL, NULL, NULL), r == 1);

	int ep = epoll_create1(0);
	ONE_PAGE struct epoll_event ev = { .events = EPOLLIN, .data.fd = ready };
	CALL("epoll_ctl ADD, a pipe", epoll_ctl(ep, EPOLL_CTL_DEL, ready, NULL), epoll_ctl(ep, EPOLL_CTL_ADD, ready, &ev), r == 0);
	CALL("epoll_ctl MOD, a pipe", , epoll_ctl(ep, EPOLL_CTL_MOD, ready, &ev), r == 0);
	CALL("epoll_wait, a pipe", , epoll_wait(ep, &ev, 1, 1000), r == 1);
	CALL("epoll_wait, a pipe, time-out 0", , epoll_wait(ep, &ev, 1, 0), r == 1);
	CALL("epoll_pwait, a pipe", , epoll_pwait(ep, &ev, 1, 1000, NULL), r == 1);
	CALL("epoll_wait, nothing there, time-out 1 ms", ev.events = 0; epoll_ctl(ep, EPOLL_CTL_MOD, ready, &ev),
	     epoll_wait(ep, &ev, 1, 1), r == 0);
	CALL("epoll_ctl DEL, a pipe", epoll_ctl(ep, EPOLL_CTL_ADD, ready, &ev), epoll_ctl(ep, EPOLL_CTL_DEL, ready, NULL), r == 0);
	close(ep);
}

static void numbers(int fd, int unix_socket)
{
	int last = -1, n = 0;
	socklen_t len = sizeof n;
	CALL("dup, a pipe", close(last), last = dup(fd), r >= 0);
	CALL("dup2, a pipe", , dup2(fd, last), r == last);
	CALL("dup3, a pipe", , dup3(fd, last, O_CLOEXEC), r == last);
	CALL("close, a pipe", last = dup(fd), close(last), r == 0);
	CALL("fcntl F_GETFL, a pipe", , fcntl(fd, F_GETFL), r >= 0);
	CALL("fcntl F_SETFD, a pipe", , fcntl(fd, F_SETFD, 0), r == 0);
	CALL("ioctl FIONREAD, a pipe", , ioctl(fd, FIONREAD, &n), r == 0);
	CALL("socket and close, UNIX", , close(socket(AF_UNIX, SOCK_STREAM, 0)), r == 0);
	CALL("getsockopt, UNIX", , getsockopt(unix_socket, SOL_SOCKET, SO_TYPE, &n, &len), r == 0);
	CALL("setsockopt, UNIX", , setsockopt(unix_socket, SOL_SOCKET, SO_SNDBUF, &n, sizeof n), r == 0);
	CALL("getsockname, UNIX", from_len = sizeof from, getsockname(unix_socket, (struct sockaddr *)&from, &from_len), r == 0);
	CALL("shutdown, a pipe", , shutdown(fd, SHUT_WR), r == -1);
}

static void copies(int file, int pipe_in, int pipe_out, int other_out, int unix_socket)
{
	off_t at = 0;
	CALL("sendfile, file to UNIX", at = 0, sendfile(unix_socket, file, &at, 4), r == 4);
	CALL("splice, pipe to pipe", put(pipe_out), splice(pipe_in, NULL, other_out, NULL, 4, 0), r == 4);
	CALL("syscall(SYS_read), a pipe", put(pipe_out), syscall(SYS_read, pipe_in, buf, 4), r == 4);
}

static void unix_accept(void)
{
	int l = socket(AF_UNIX, SOCK_STREAM, 0), c = -1, last = -1;
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	EQ(bind(l, (struct sockaddr *)&a, sizeof(sa_family_t)), 0);
	from_len = sizeof a;
	EQ(getsockname(l, (struct sockaddr *)&a, &from_len), 0);
	EQ(listen(l, 8), 0);
	CALL("connect, UNIX", close(c); c = socket(AF_UNIX, SOCK_STREAM, 0), connect(c, (struct sockaddr *)&a, from_len), r == 0);
	CALL("accept, UNIX", close(last), last = accept(l, NULL, NULL), r >= 0);
	close(l);
}

static void udp(void)
{
	static const char *calls[6] = { "send, UDP", "sendto, UDP", "sendmsg, UDP", "recv, UDP", "recvfrom, UDP", "recvmsg, UDP" };
	int s = socket(AF_INET, SOCK_DGRAM, 0);
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof a;
	EQ(bind(s, (struct sockaddr *)&a, sizeof a), 0);
	EQ(getsockname(s, (struct sockaddr *)&a, &n), 0);
	EQ(connect(s, (struct sockaddr *)&a, sizeof a), 0);
	messages(calls, s, s);
	close(s);
}

// TCP with a peer that has no NetACC.
static void tcp(int helper, int port)
{
	static const char *plain[4] = { "write, TCP", "writev, TCP", "read, TCP", "readv, TCP" };
	static const char *calls[6] = { "send, TCP", "sendto, TCP", "sendmsg, TCP", "recv, TCP", "recvfrom, TCP", "recvmsg, TCP" };
	int c = connect_to(port), last = -1, own, on = 1;
	CHECK(ready(c, POLLIN, 10000));
	ONE_PAGE struct pollfd p = { c, POLLIN, 0 };
	bytes(plain, c, c);
	messages(calls, c, c);
	CALL("poll, TCP", , poll(&p, 1, 1000), r == 1);
	CALL("fcntl F_GETFL, TCP", , fcntl(c, F_GETFL), r >= 0);
	CALL("setsockopt TCP_NODELAY, TCP", , setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), r == 0);
	int ep = epoll_create1(0);
	ONE_PAGE struct epoll_event ev = { .events = EPOLLIN, .data.fd = c };
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, c, &ev), 0);
	CALL("epoll_wait, TCP", , epoll_wait(ep, &ev, 1, 1000), r == 1);
	close(ep);

	int l = listen_on(&own);
	CALL("accept, TCP, from without NetACC",
	     close(last); dprintf(helper, "%d\n", own); EQ(read(helper, buf, 1), 1); CHECK(ready(l, POLLIN, 10000)),
	     last = accept(l, NULL, NULL), r >= 0);
	close(last);
	CALL("close, TCP", last = dup(c), close(last), r == 0);
	nonblock(l);
	CALL("accept, nobody there", , accept(l, NULL, NULL), r == -1);
	ONE_PAGE struct pollfd both[2] = { { l, POLLIN, 0 }, { c, POLLIN, 0 } };
	CALL("poll, TCP and a listener", , poll(both, 2, 1000), r == 1);
}

static void all(int with_tcp, int helper, int port)
{
	static const char *pipes[4] = { "write, a pipe", "writev, a pipe", "read, a pipe", "readv, a pipe" };
	static const char *files[4] = { "write, a file", "writev, a file", "read, a file", "readv, a file" };
	static const char *locals[6] = { "send, UNIX", "sendto, UNIX", "sendmsg, UNIX", "recv, UNIX", "recvfrom, UNIX", "recvmsg, UNIX" };
	int p[2], q[2], z[2], u[2], file = open("/proc/self/exe", O_RDONLY), null = open("/dev/null", O_RDWR);
	CHECK(file >= 0 && null >= 0 && !pipe(p) && !pipe(q) && !pipe(z) && !socketpair(AF_UNIX, SOCK_STREAM, 0, u));
	bytes(pipes, p[1], p[0]);
	bytes(files, null, file);
	messages(locals, u[0], u[1]);
	waits(p[0], z[0]);
	copies(file, p[0], p[1], q[1], u[0]);
	numbers(z[0], u[0]);
	unix_accept();
	udp();
	if (with_tcp)
		tcp(helper, port);
}

int main(int argc, char **argv)
{
	t_init();
	if (argc != 4)
		die("usage: calls HELPER PORT idle|busy");
	int busy = !strcmp(argv[3], "busy"), p[2] = { -1, -1 };
	if (busy) {
		pair(p);
		send_all(p[0], "x", 1);
		recv_all(p[1], buf, 1);
	}
	if (ptrace(PTRACE_TRACEME, 0, 0, 0))
		die("ptrace");
	raise(SIGSTOP);
	all(busy, atoi(argv[1]), atoi(argv[2]));
	// After all: the check makes processes, which changes what a connection is.
	if (busy)
		expect_shm(p[0]);
	return 0;
}
