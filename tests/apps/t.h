// Common to all small test programs. Each exits 0 with "ok NAME", 1 with a reason, or 77 if it cannot run here; 60 s at most.
// The programs know nothing of NetACC, except expect_shm() (used by a few).
#ifndef T_H
#define T_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "host.h"

static pid_t t_main;

__attribute__((noreturn, format(printf, 2, 3), unused)) static void t_die(int line, const char *fmt, ...)
{
	char b[400];
	int e = errno;
	int n = snprintf(b, sizeof b, "line %d: ", line);
	va_list a;
	va_start(a, fmt);
	n += vsnprintf(b + n, sizeof b - n, fmt, a);
	va_end(a);
	n = n > 350 ? 350 : n;
	n += snprintf(b + n, sizeof b - n, " (errno %s)\n", strerrorname_np(e) ? strerrorname_np(e) : "0");
	ssize_t r = write(2, b, n);
	(void)r;
	if (getpid() == t_main)
		kill(0, SIGTERM); // our children: run by the script in a group of our own
	_exit(1);
}
#define die(...) t_die(__LINE__, __VA_ARGS__)
#define CHECK(c) do { if (!(c)) t_die(__LINE__, "not true: %s", #c); } while (0)
#define EQ(a, b) do { long a_ = (long)(a), b_ = (long)(b); if (a_ != b_) t_die(__LINE__, "%s is %ld, expected %ld", #a, a_, b_); } while (0)
#define FAILS(call, e) do { long r_ = (long)(call); int e_ = errno; if (r_ != -1 || e_ != (e)) \
	t_die(__LINE__, "%s gives %ld errno %s, expected -1 %s", #call, r_, r_ < 0 ? strerrorname_np(e_) : "0", #e); } while (0)

static void t_alarm(int s)
{
	(void)s;
	static const char m[] = "hang: cut by the alarm\n";
	ssize_t r = write(2, m, sizeof m - 1);
	(void)r;
	_exit(1);
}
static void t_term(int s) { (void)s; _exit(1); }

// How long a program may take: 60 s, and more on a machine that is slower (T_PATIENCE, see host.h).
static unsigned t_limit(void) { return 60 * patience(); }

// First call of main. Children made later inherit no alarm: call it again there (fork_child does).
__attribute__((unused)) static void t_init(void)
{
	if (!t_main) {
		t_main = getpid();
		if (getpgrp() != t_main)
			setpgid(0, 0);
		signal(SIGTERM, t_term);
	}
	signal(SIGALRM, t_alarm);
	alarm(t_limit());
}
__attribute__((unused)) static int t_ok(const char *name)
{
	printf("ok %s\n", name);
	fflush(stdout);
	return 0;
}
__attribute__((unused)) static pid_t fork_child(void)
{
	fflush(NULL);
	pid_t p = fork();
	if (p < 0)
		die("fork");
	if (!p) {
		signal(SIGALRM, t_alarm);
		alarm(t_limit());
	}
	return p;
}
// Entries of its folder of descriptors: only differences mean anything.
__attribute__((unused)) static int descriptors(pid_t p)
{
	char path[40];
	int n = 0;
	snprintf(path, sizeof path, "/proc/%d/fd", p);
	DIR *d = opendir(path);
	CHECK(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}
// The child must end with status 0.
__attribute__((unused)) static void reap(pid_t p)
{
	int st;
	if (waitpid(p, &st, 0) != p || st)
		die("child %d ended with status %x", (int)p, st);
}
__attribute__((unused)) static void reap_killed(pid_t p)
{
	int st;
	if (waitpid(p, &st, 0) != p || !WIFSIGNALED(st))
		die("child %d ended with status %x", (int)p, st);
}

__attribute__((unused)) static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

__attribute__((unused)) static int port_of(int fd)
{
	struct sockaddr_storage a;
	socklen_t n = sizeof a;
	if (getsockname(fd, (struct sockaddr *)&a, &n))
		die("getsockname");
	return ntohs(a.ss_family == AF_INET ? ((struct sockaddr_in *)&a)->sin_port : ((struct sockaddr_in6 *)&a)->sin6_port);
}
__attribute__((unused)) static struct sockaddr_in addr4(int port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = host4() };
}
__attribute__((unused)) static int listen_n(int backlog, int *port)
{
	struct sockaddr_in a = addr4(0);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, backlog))
		die("listen");
	to_be_found(fd);
	*port = port_of(fd);
	return fd;
}
__attribute__((unused)) static int listen_on(int *port) { return listen_n(128, port); }
__attribute__((unused)) static int connect_to(int port)
{
	struct sockaddr_in a = addr4(port);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a))
		die("connect to port %d", port);
	return fd;
}
// A connected pair inside this process: p[0] is the client's side, p[1] the server's.
__attribute__((unused)) static void pair(int p[2])
{
	int port, l = listen_on(&port);
	p[0] = connect_to(port);
	p[1] = accept(l, NULL, NULL);
	if (p[1] < 0)
		die("accept");
	close(l);
}
__attribute__((unused)) static int nonblock(int fd)
{
	if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK))
		die("O_NONBLOCK");
	return fd;
}
__attribute__((unused)) static void abortive(int fd) // close sends RST
{
	struct linger l = { 1, 0 };
	if (setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l))
		die("SO_LINGER");
}
__attribute__((unused)) static void send_all(int fd, const void *b, size_t n)
{
	for (const char *p = b; n;) {
		ssize_t r = send(fd, p, n, MSG_NOSIGNAL);
		if (r <= 0)
			die("send gives %zd with %zu to go", r, n);
		p += r;
		n -= r;
	}
}
__attribute__((unused)) static void recv_all(int fd, void *b, size_t n)
{
	for (char *p = b; n;) {
		ssize_t r = recv(fd, p, n, 0);
		if (r <= 0)
			die("recv gives %zd with %zu to go", r, n);
		p += r;
		n -= r;
	}
}
// 1 if any of ev (or ERR, HUP) comes within ms
__attribute__((unused)) static int ready(int fd, short ev, int ms)
{
	struct pollfd p = { fd, ev, 0 };
	int r = poll(&p, 1, ms);
	if (r < 0)
		die("poll");
	return r ? p.revents : 0;
}
// Pattern of a stream: byte at offset o of stream k.
static inline unsigned char pat1(uint64_t o, unsigned k) { return (unsigned char)((o * 2654435761u + (o >> 11) + k * 97) >> 7); }
__attribute__((unused)) static void pat_fill(unsigned char *b, size_t n, uint64_t o, unsigned k)
{
	for (size_t i = 0; i < n; i++)
		b[i] = pat1(o + i, k);
}
__attribute__((unused)) static void pat_check(const unsigned char *b, size_t n, uint64_t o, unsigned k)
{
	for (size_t i = 0; i < n; i++)
		if (b[i] != pat1(o + i, k))
			die("wrong byte at stream offset %llu", (unsigned long long)(o + i));
}
// Another process over plain pipes (not sockets): a one-byte signal each way.
struct sig { int r, w; };
__attribute__((unused)) static void sigpair(struct sig *a, struct sig *b)
{
	int x[2], y[2];
	if (pipe(x) || pipe(y))
		die("pipe");
	*a = (struct sig){ x[0], y[1] };
	*b = (struct sig){ y[0], x[1] };
}
__attribute__((unused)) static void tell(struct sig s)
{
	if (write(s.w, "!", 1) != 1)
		die("tell");
}
__attribute__((unused)) static void await(struct sig s)
{
	char c;
	if (read(s.r, &c, 1) != 1)
		die("await: the other process is gone");
}
// Wait until thread tid of this process sleeps in the kernel or (spinning waits) some time has passed.
// Only makes the interesting order likely; every order must pass.
__attribute__((unused)) static void let_it_block(pid_t pid, pid_t tid)
{
	double end = now() + 0.05;
	char path[80], b[300];
	snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, tid);
	while (now() < end) {
		int f = open(path, O_RDONLY);
		ssize_t n = f < 0 ? 0 : read(f, b, sizeof b - 1);
		if (f >= 0)
			close(f);
		b[n > 0 ? n : 0] = 0;
		char *p = strrchr(b, ')');
		if (p && p[2] == 'S')
			break;
		usleep(500);
	}
	usleep(1000);
}

// Ends the test as skipped, which is neither passed nor failed: the machine lacks something that it needs.
__attribute__((noreturn, unused)) static void t_skip(const char *name, const char *why)
{
	printf("skipped %s: %s\n", name, why);
	fflush(stdout);
	_exit(77);
}

// With NETACC_EXPECT=shm: the connection must really be on this transport, for this reason if one is named, as
// netacc_ss sees it. With NETACC_EXPECT=rdma that takes the place of shared memory.
__attribute__((unused)) static void expect_on(int fd, const char *transport, const char *reason)
{
	const char *e = getenv("NETACC_EXPECT"), *ss = getenv("NETACC_SS");
	if (!e || (strcmp(e, "shm") && strcmp(e, "rdma")))
		return;
	if (!strcmp(e, "rdma") && !strcmp(transport, "SHM"))
		transport = "RDMA";
	static char out[1 << 20];
	char cmd[300];
	snprintf(cmd, sizeof cmd, "LD_PRELOAD= %s -p %d -s sock --json", ss ? ss : "netacc_ss", getpid());
	FILE *p = popen(cmd, "r");
	size_t n = p ? fread(out, 1, sizeof out - 1, p) : 0;
	out[n] = 0;
	if (p)
		pclose(p);
	// The objects of the array "sockets" are flat: look at the one with our fd.
	for (char *f = out; (f = strstr(f, "\"fd\"")); f++) {
		if (atoi(f + 4 + strspn(f + 4, ": ")) != fd)
			continue;
		char *o = f, *end = strchr(f, '}');
		while (o > out && *o != '{')
			o--;
		char *t = strstr(o, "\"transport\"");
		if (!t || !end || t > end)
			continue;
		t += strlen("\"transport\"");
		t += strspn(t, ": \"");
		if (strncasecmp(t, transport, strlen(transport)))
			die("descriptor %d is on transport %.12s, expected %s", fd, t, transport);
		char *why = strstr(o, "\"reason\"");
		why = why && why < end ? why + strlen("\"reason\"") : "";
		why += strspn(why, ": \"");
		if (reason && strncmp(why, reason, strlen(reason)))
			die("descriptor %d has reason %.20s, expected %s", fd, why, reason);
		return;
	}
	die("netacc_ss does not list descriptor %d: %.150s", fd, out);
}
__attribute__((unused)) static void expect_shm(int fd) { expect_on(fd, "SHM", NULL); }
// Passes a descriptor to the process at the other end of UNIX socket u, and back (unix(7), SCM_RIGHTS).
__attribute__((unused)) static void pass_fd(int u, int fd)
{
	char c = 'f', ctl[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec v = { &c, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = ctl, .msg_controllen = sizeof ctl };
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);
	h->cmsg_level = SOL_SOCKET;
	h->cmsg_type = SCM_RIGHTS;
	h->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(h), &fd, sizeof fd);
	EQ(sendmsg(u, &m, 0), 1);
}
__attribute__((unused)) static int take_fd(int u)
{
	char c, ctl[CMSG_SPACE(sizeof(int))];
	struct iovec v = { &c, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = ctl, .msg_controllen = sizeof ctl };
	int fd;
	EQ(recvmsg(u, &m, 0), 1);
	CHECK(CMSG_FIRSTHDR(&m));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
	return fd;
}
#endif
