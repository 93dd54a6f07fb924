// The first sockets of a process have each a port, a mode and options of their own, whichever is bound or connected first and
// however many there are by then. Every round runs in a new program, since what is first is so once in a process.
#include "t.h"

static struct sockaddr_in own_address(int fd)
{
	struct sockaddr_in a;
	socklen_t len = sizeof a;
	EQ(getsockname(fd, (struct sockaddr *)&a, &len), 0);
	return a;
}

static void bind_any(int fd)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	EQ(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
}

static int flags(int fd) { return fcntl(fd, F_GETFL) & O_NONBLOCK; }

// Sockets of different kinds, as many as `count`, which are bound from the first to the last or the other way.
static void bound(int count, int backwards)
{
	int fd[3], size = 0, on = 0;
	socklen_t len = sizeof size;
	for (int i = 0; i < count; i++) {
		fd[i] = socket(AF_INET, SOCK_STREAM | (i % 2 ? SOCK_CLOEXEC : SOCK_NONBLOCK), 0);
		CHECK(fd[i] >= 0);
		size = 1;
		if (i != 1)
			EQ(setsockopt(fd[i], IPPROTO_TCP, TCP_NODELAY, &size, sizeof size), 0);
	}
	for (int i = 0; i < count; i++) {
		int n = backwards ? count - 1 - i : i;
		EQ(ntohs(own_address(fd[n]).sin_port), 0);
		bind_any(fd[n]);
	}
	for (int i = 0; i < count; i++) {
		CHECK(own_address(fd[i]).sin_port);
		for (int other = 0; other < i; other++)
			CHECK(own_address(fd[i]).sin_port != own_address(fd[other]).sin_port);
		EQ(flags(fd[i]), i % 2 ? 0 : O_NONBLOCK);
		EQ(fcntl(fd[i], F_GETFD), i % 2 ? FD_CLOEXEC : 0);
		EQ(getsockopt(fd[i], IPPROTO_TCP, TCP_NODELAY, &on, &len), 0);
		EQ(!!on, i != 1);
	}
	for (int i = 0; i < count; i++)
		EQ(close(fd[i]), 0);
}

// One socket after the other: each is closed before the next one is made, bound or not.
static void in_turn(void)
{
	for (int i = 0; i < 6; i++) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(fd >= 0);
		EQ(ntohs(own_address(fd).sin_port), 0);
		if (i % 3)
			bind_any(fd);
		EQ(close(fd), 0);
	}
}

// A first socket that another process has, too, and one that the child makes.
static void forked(void)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		int own = socket(AF_INET, SOCK_STREAM, 0);
		bind_any(own);
		CHECK(own_address(own).sin_port && own_address(fd).sin_port != own_address(own).sin_port);
		_exit(0);
	}
	int status;
	EQ(waitpid(child, &status, 0), child);
	EQ(status, 0);
	EQ(ntohs(own_address(fd).sin_port), 0);
	bind_any(fd);
	CHECK(own_address(fd).sin_port);
	EQ(close(fd), 0);
}

// A connection that is refused, after which the same socket serves for another one.
static void refused(void)
{
	int gone = socket(AF_INET, SOCK_STREAM, 0), listener = socket(AF_INET, SOCK_STREAM, 0);
	bind_any(gone), bind_any(listener);
	struct sockaddr_in nowhere = own_address(gone), there = own_address(listener);
	EQ(close(gone), 0);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	FAILS(connect(fd, (struct sockaddr *)&nowhere, sizeof nowhere), ECONNREFUSED);
	EQ(listen(listener, 4), 0);
	EQ(connect(fd, (struct sockaddr *)&there, sizeof there), 0);
	int accepted = accept(listener, NULL, NULL);
	CHECK(accepted >= 0);
	char byte = 0;
	EQ(send(fd, "!", 1, 0), 1);
	EQ(recv(accepted, &byte, 1, 0), 1);
	EQ(byte, '!');
	close(fd), close(accepted), close(listener);
}

static const char *const ROUNDS[] = { "one", "two", "three", "two backwards", "three backwards", "in turn", "forked", "refused" };

static void play(int round)
{
	if (round < 3)
		return bound(round + 1, 0);
	if (round < 5)
		return bound(round - 1, 1);
	if (round == 5)
		return in_turn();
	return round == 6 ? forked() : refused();
}

int main(int argc, char **argv)
{
	t_init();
	if (argc > 1) {
		play(atoi(argv[1]));
		return 0;
	}
	for (unsigned i = 0; i < sizeof ROUNDS / sizeof *ROUNDS; i++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (!child) {
			char number[4];
			snprintf(number, sizeof number, "%u", i);
			execl("/proc/self/exe", argv[0], number, NULL);
			_exit(126);
		}
		int status;
		EQ(waitpid(child, &status, 0), child);
		if (status)
			die("round \"%s\" ends with status %x", ROUNDS[i], status);
	}
	return t_ok("first_socket");
}
