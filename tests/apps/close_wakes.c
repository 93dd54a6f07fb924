// Java closes a socket in which another thread sleeps by dup2 of another file over its number and then a signal whose
// handler has no SA_RESTART. The sleeping call ends with EINTR, or with the result of a call on the new file, and does
// not go on with the old one.
#include "t.h"

static int dead, fd, other = -1;
static pthread_t sleeper;
static pid_t sleeper_tid;
static volatile int signalled; // or about to be

static void handler(int s) { (void)s; }

// A closed peer: reads end, writes fail, and poll says POLLIN and POLLHUP.
static int dead_end(void)
{
	int u[2];
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, u));
	close(u[1]);
	return u[0];
}

// Before that the call would be one on the new file.
static void until_asleep(pid_t tid)
{
	char path[80], b[300];
	snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
	for (char *p = NULL; !p || p[2] != 'S'; usleep(500)) {
		int f = open(path, O_RDONLY);
		ssize_t n = read(f, b, sizeof b - 1);
		close(f);
		b[n > 0 ? n : 0] = 0;
		p = strrchr(b, ')');
	}
	usleep(1000);
}

static void *closer(void *unused)
{
	until_asleep(sleeper_tid);
	(void)unused;
	signalled = 1;
	EQ(dup2(dead, fd), fd);
	// One signal, as Java sends it.
	pthread_kill(sleeper, SIGUSR1);
	return NULL;
}

// Calls `c` while another thread takes `f` from it.
#define ENDS(f, c, ok) do { \
	pthread_t t_; \
	fd = (f), signalled = 0; \
	CHECK(!pthread_create(&t_, NULL, closer, NULL)); \
	errno = 0; \
	long r = (long)(c); \
	int e = errno; \
	(void)e; \
	if (!(ok)) \
		die("%s gives %ld, errno %s", #c, r, strerrorname_np(e)); \
	pthread_join(t_, NULL); \
} while (0)
#define INTERRUPTED (r == -1 && e == EINTR)
// A poll that is woken looks its numbers up again, and finds the new file.
#define INTERRUPTED_OR_SEEN (INTERRUPTED || (signalled && r == 1))

static void fill(int s)
{
	static char b[1 << 16];
	while (send(s, b, sizeof b, MSG_DONTWAIT) > 0)
		;
	EQ(errno, EAGAIN);
}

// A pair after a fork: the connection has a base, whose number the sleeper sleeps on.
static void forked_pair(int p[2])
{
	pair(p);
	struct sig a, b;
	sigpair(&a, &b);
	pid_t c = fork_child();
	if (!c) {
		await(b);
		_exit(0);
	}
	(void)c;
	other = a.w;
}

int main(void)
{
	t_init();
	struct sigaction sa = { .sa_handler = handler };
	CHECK(!sigaction(SIGUSR1, &sa, NULL));
	sleeper = pthread_self();
	sleeper_tid = gettid();
	dead = dead_end();
	for (int round = 0; round < 3; round++) {
		int p[2], port, l = listen_on(&port);
		char c;
		ENDS(l, accept(l, NULL, NULL), INTERRUPTED);
		close(l);
		// With a second number: the listener lives on, and so does what waits there.
		l = listen_on(&port);
		int second = dup(l), ours = connect_to(port), theirs = accept(second, NULL, NULL);
		CHECK(theirs >= 0);
		ENDS(l, accept(l, NULL, NULL), INTERRUPTED);
		close(ours), close(theirs);
		ours = connect_to(port);
		theirs = accept(second, NULL, NULL);
		CHECK(theirs >= 0);
		close(ours), close(theirs), close(second), close(l);

		pair(p);
		ENDS(p[0], recv(p[0], &c, 1, 0), INTERRUPTED);
		close(p[0]), close(p[1]);
		pair(p);
		ENDS(p[1], read(p[1], &c, 1), INTERRUPTED);
		close(p[0]), close(p[1]);
		pair(p);
		fill(p[0]);
		ENDS(p[0], send(p[0], &c, 1, 0), INTERRUPTED);
		close(p[0]), close(p[1]);
		forked_pair(p);
		ENDS(p[0], recv(p[0], &c, 1, 0), INTERRUPTED);
		close(p[0]), close(p[1]), tell((struct sig){ -1, other });
		CHECK(wait(NULL) > 0);

		pair(p);
		struct pollfd w = { p[0], POLLIN, 0 };
		ENDS(p[0], poll(&w, 1, -1), INTERRUPTED_OR_SEEN);
		close(p[0]), close(p[1]);
		l = listen_on(&port);
		w = (struct pollfd){ l, POLLIN, 0 };
		ENDS(l, poll(&w, 1, -1), INTERRUPTED_OR_SEEN);
		close(l);
		pair(p);
		fd_set set;
		FD_ZERO(&set);
		FD_SET(p[0], &set);
		ENDS(p[0], select(p[0] + 1, &set, NULL, NULL, NULL), INTERRUPTED_OR_SEEN);
		close(p[0]), close(p[1]);

		// An epoll instance has the file and not the number: it gets no event of the new file.
		pair(p);
		int ep = epoll_create1(0);
		struct epoll_event ev = { EPOLLIN, { .fd = p[0] } };
		CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, p[0], &ev));
		ENDS(p[0], epoll_wait(ep, &ev, 1, -1), INTERRUPTED);
		close(ep), close(p[0]), close(p[1]);
		l = listen_on(&port);
		ep = epoll_create1(0);
		ev = (struct epoll_event){ EPOLLIN, { .fd = l } };
		CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, l, &ev));
		ENDS(l, epoll_wait(ep, &ev, 1, -1), INTERRUPTED);
		close(ep), close(l);
	}
	return t_ok("close_wakes");
}
