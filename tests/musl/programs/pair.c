// Two processes that may have different libcs: `pair serve PORT` and `pair connect PORT` do the same things with one connection
// after the other, in many ways of calling, and each checks what it gets.
#include "t.h"
#include <spawn.h>

#define BYTES 2000000
#define LINES 500
extern char **environ;

static unsigned lot = 1;
static unsigned any(unsigned below)
{
	lot = lot * 1103515245 + 12345;
	return (lot >> 16) % below;
}

static void wait_for(int fd, short what)
{
	struct pollfd f = { fd, what, 0 };
	fd_set s;
	FD_ZERO(&s);
	FD_SET(fd, &s);
	struct timeval tv = { 20, 0 };
	struct timespec ts = { 20, 0 };
	switch (any(5)) {
	case 0: EQ(poll(&f, 1, 20000), 1); break;
	case 1: EQ(ppoll(&f, 1, &ts, NULL), 1); break;
	case 2: EQ(select(fd + 1, what == POLLIN ? &s : NULL, what == POLLIN ? NULL : &s, NULL, &tv), 1); break;
	case 3: {
		struct epoll_event e = { .events = what == POLLIN ? EPOLLIN : EPOLLOUT };
		int ep = epoll_create1(0);
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e), 0);
		EQ(epoll_wait(ep, &e, 1, 20000), 1);
		close(ep);
	}
	}
}

static void put(int fd, unsigned stream)
{
	static unsigned char b[70000];
	for (size_t at = 0; at < BYTES;) {
		size_t n = 1 + any(any(4) ? 2000 : sizeof b);
		n = n > BYTES - at ? BYTES - at : n;
		pat_fill(b, n, at, stream);
		struct iovec v[2] = { { b, n / 2 }, { b + n / 2, n - n / 2 } };
		struct msghdr m;
		memset(&m, 0, sizeof m);
		m.msg_iov = v;
		m.msg_iovlen = 2;
		struct mmsghdr mm = { m, 0 };
		if (!any(8))
			wait_for(fd, POLLOUT);
		ssize_t r;
		switch (any(6)) {
		case 0: r = send(fd, b, n, MSG_NOSIGNAL); break;
		case 1: r = write(fd, b, n); break;
		case 2: r = writev(fd, v, 2); break;
		case 3: r = sendmsg(fd, &m, 0); break;
		case 4: r = sendto(fd, b, n, 0, NULL, 0); break;
		default: r = sendmmsg(fd, &mm, 1, 0) == 1 ? (ssize_t)mm.msg_len : -1;
		}
		CHECK(r > 0);
		at += r;
	}
}

static void get(int fd, unsigned stream)
{
	static unsigned char b[70000];
	for (size_t at = 0; at < BYTES;) {
		size_t n = 1 + any(any(4) ? 2000 : sizeof b);
		n = n > BYTES - at ? BYTES - at : n;
		struct iovec v[2] = { { b, n / 2 }, { b + n / 2, n - n / 2 } };
		struct msghdr m;
		memset(&m, 0, sizeof m);
		m.msg_iov = v;
		m.msg_iovlen = 2;
		if (!any(8))
			wait_for(fd, POLLIN);
		ssize_t r;
		switch (any(6)) {
		case 0: r = recv(fd, b, n, 0); break;
		case 1: r = read(fd, b, n); break;
		case 2: r = readv(fd, v, 2); break;
		case 3: r = recvmsg(fd, &m, 0); break;
		case 4: r = recvfrom(fd, b, n, MSG_WAITALL, NULL, NULL); break;
		default:
			r = recv(fd, b, n, MSG_PEEK);
			CHECK(r > 0);
			pat_check(b, r, at, stream);
			r = recv(fd, b, r, 0);
		}
		CHECK(r > 0);
		pat_check(b, r, at, stream);
		at += r;
	}
}

static void *put_thread(void *fd)
{
	put((int)(intptr_t)fd, 1);
	return NULL;
}

static void both_ways(int fd, int server)
{
	pthread_t t;
	if (server) {
		EQ(pthread_create(&t, NULL, put_thread, (void *)(intptr_t)fd), 0);
		get(fd, 2);
		EQ(pthread_join(t, NULL), 0);
	} else {
		pid_t p = fork_child();
		if (!p) {
			put(fd, 2);
			_exit(0);
		}
		get(fd, 1);
		reap(p);
	}
	expect_shm(fd);
}

static void file(int fd, int server)
{
	if (!server)
		return get(fd, 3);
	static unsigned char b[BYTES];
	pat_fill(b, sizeof b, 0, 3);
	int f = fileno(tmpfile());
	EQ(write(f, b, sizeof b), BYTES);
	for (off_t at = 0; at < BYTES;)
		CHECK(sendfile(fd, f, &at, BYTES - at) > 0);
}

static void half_close(int fd, int server)
{
	char c;
	if (!server) {
		put(fd, 4);
		EQ(shutdown(fd, SHUT_WR), 0);
		get(fd, 5);
	} else {
		get(fd, 4);
		EQ(read(fd, &c, 1), 0);
		put(fd, 5);
		EQ(shutdown(fd, SHUT_WR), 0);
	}
	EQ(read(fd, &c, 1), 0);
}

// libc reads and writes within itself here, where nothing stands before it.
static void lines(int fd, int server)
{
	char line[100], expected[100];
	int copy = dup(fd);
	FILE *in = fdopen(copy, "r"), *out = fdopen(fd, "w");
	CHECK(in && out);
	for (int n = 0; n < LINES; n++) {
		snprintf(expected, sizeof expected, "line %d\n", n);
		if (server) {
			CHECK(fprintf(out, "line %d\n", n) > 0);
			CHECK(!fflush(out));
		}
		CHECK(fgets(line, sizeof line, in));
		CHECK(!strcmp(line, expected));
		if (!server)
			CHECK(dprintf(fd, "line %d\n", n) > 0);
	}
	EQ(fclose(in), 0);
	EQ(fclose(out), 0);
}

static void echo_side(int fd)
{
	char b[100];
	ssize_t n;
	while ((n = read(fd, b, sizeof b)) > 0)
		EQ(write(fd, b, n), n);
}

static void ask(int fd)
{
	char b[10];
	for (int n = 0; n < 200; n++) {
		send_all(fd, "0123456789", 10);
		recv_all(fd, b, 10);
		CHECK(!memcmp(b, "0123456789", 10));
	}
	EQ(shutdown(fd, SHUT_WR), 0);
	EQ(read(fd, b, 1), 0);
}

static void child(int fd, int server)
{
	if (!server)
		return ask(fd);
	pid_t p = fork_child();
	if (!p) {
		echo_side(fd);
		_exit(0);
	}
	close(fd);
	reap(p);
}

// Another program gets the connection, by what libc does in the child.
static void spawned(int fd, int server)
{
	if (!server)
		return ask(fd);
	pid_t p;
	posix_spawn_file_actions_t actions;
	EQ(posix_spawn_file_actions_init(&actions), 0);
	EQ(posix_spawn_file_actions_adddup2(&actions, fd, 20), 0);
	char *args[] = { "pair", "echo", "20", NULL };
	EQ(posix_spawn(&p, "/proc/self/exe", &actions, NULL, args, environ), 0);
	close(fd);
	reap(p);
}

static void executed(int fd, int server)
{
	if (!server)
		return ask(fd);
	char number[12], *args[] = { "pair", "echo", number, NULL };
	snprintf(number, sizeof number, "%d", fd);
	pid_t p = any(2) ? vfork() : fork();
	if (!p) {
		execv("/proc/self/exe", args);
		_exit(9);
	}
	close(fd);
	reap(p);
}

static void by_shell(int fd, int server)
{
	if (!server)
		return ask(fd);
	char command[100];
	snprintf(command, sizeof command, "exec cat <&%d >&%d", fd, fd);
	EQ(system(command), 0);
}

int main(int argc, char **argv)
{
	static void (*const all[])(int, int) = { both_ways, file, half_close, lines, child, spawned, executed, by_shell };
	t_init();
	signal(SIGPIPE, SIG_IGN);
	if (argc != 3)
		return 2;
	if (!strcmp(argv[1], "echo")) {
		echo_side(atoi(argv[2]));
		return 0;
	}
	int server = !strcmp(argv[1], "serve"), l = -1, on = 1;
	struct sockaddr_in a = addr4(atoi(argv[2]));
	if (server) {
		l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		EQ(setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
		EQ(bind(l, (struct sockaddr *)&a, sizeof a), 0);
		EQ(listen(l, 5), 0);
	}
	for (size_t n = 0; n < sizeof all / sizeof *all; n++) {
		int fd = server ? accept(l, NULL, NULL) : socket(AF_INET, SOCK_STREAM, 0);
		CHECK(fd >= 0);
		if (!server)
			EQ(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
		all[n](fd, server);
		close(fd);
		printf("%zu\n", n);
		fflush(stdout);
	}
	return t_ok("pair");
}
