// The descriptor of an accepted connection that was closed is closed for every call that names it, after the next sleep
// for the whole process, and in a child. The next accept gets the number again.
#include "t.h"
#include <sys/syscall.h>
static int l, port;
static int accepted(void)
{
	close(connect_to(port));
	int s = accept4(l, NULL, NULL, SOCK_CLOEXEC);
	CHECK(s > 2);
	return s;
}
static int lowest(void)
{
	int f = open("/dev/null", O_RDONLY);
	close(f);
	return f;
}
static int is_open(int n) { return syscall(SYS_fcntl, n, F_GETFD) != -1; }
int main(void)
{
	t_init();
	l = listen_on(&port);
	close(accepted());
	for (int round = 0; round < 20; round++) {
		int n = accepted();
		close(n);
		EQ(accepted(), n);
		close(n);
		char b[4];
		switch (round % 10) {
		case 0: FAILS(close(n), EBADF); break;
		case 1: FAILS(fcntl(n, F_GETFD), EBADF); break;
		case 2: FAILS(write(n, "x", 1), EBADF); break;
		case 3: FAILS(recv(n, b, 4, 0), EBADF); break;
		case 4: FAILS(dup(n), EBADF); break;
		case 5: FAILS(shutdown(n, SHUT_RDWR), EBADF); break;
		case 6: FAILS(dup2(n, 100), EBADF); break;
		case 7: {
			struct pollfd p = { n, POLLIN, 0 };
			EQ(poll(&p, 1, 0), 1);
			EQ(p.revents, POLLNVAL);
			break;
		}
		case 8: {
			int d = dup(l);
			EQ(d, n); // numbers made by calls of sockets are the lowest
			close(d);
			break;
		}
		case 9: {
			int d = socket(AF_INET, SOCK_STREAM, 0);
			EQ(d, n);
			close(d);
			break;
		}
		}
		CHECK(!is_open(n));
		EQ(accepted(), n);
		close(n);
		EQ(dup2(l, n), n);
		CHECK(ready(n, POLLIN, 0) == 0);
		close(n);
		CHECK(!is_open(n));
	}
	// At rest nothing is open that the program has closed, however many they were.
	int many[200], lo = lowest();
	for (int i = 0; i < 200; i++)
		many[i] = accepted();
	for (int i = 0; i < 200; i++)
		close(many[i]);
	CHECK(ready(l, POLLIN, 1) == 0);
	for (int i = 0; i < 200; i++)
		CHECK(!is_open(many[i]));
	EQ(lowest(), lo);
	// Nor in a child, whose parent goes on with its own.
	int n = accepted();
	close(n);
	pid_t child = fork_child();
	if (!child) {
		CHECK(!is_open(n));
		_exit(0);
	}
	EQ(accepted(), n);
	reap(child);
	// A number that a started program is to have is closed at once.
	EQ(fcntl(n, F_SETFD, 0), 0);
	close(n);
	CHECK(!is_open(n));
	n = accepted();
	int d = dup(n);
	close(n);
	EQ(dup2(d, n), n);
	close(d);
	close(n);
	CHECK(!is_open(n));
	// close_range closes it with the others, and then it is the next file's.
	n = accepted();
	close(n);
	EQ(close_range(n, n + 100, 0), 0);
	CHECK(!is_open(n));
	EQ(open("/dev/null", O_RDONLY), n);
	d = accepted();
	CHECK(d != n && is_open(d) && is_open(n));
	close(d);
	close(n);
	// Where numbers run out, one that was closed is there for the next.
	n = accepted();
	struct rlimit rl = { 128, 128 };
	EQ(setrlimit(RLIMIT_NOFILE, &rl), 0);
	close(n);
	while (socket(AF_INET, SOCK_STREAM, 0) >= 0)
		;
	EQ(errno, EMFILE);
	CHECK(is_open(n) && fcntl(n, F_GETFD) >= 0);
	return t_ok("vacant_number");
}
