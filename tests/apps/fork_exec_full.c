// A process hands a connection to a program that it starts in a child, while the other end has more to send than is
// read, sends it and ends: the program reads all of it.
#include "t.h"
#include <sys/stat.h>
enum { ROUNDS = 60, MOST = 400000 };
static unsigned char b[MOST];
static int total(int round) { return 200000 + round * 3331 % 200000; }
static int go_on(int fd, int round)
{
	int n = total(round);
	recv_all(fd, b, n);
	pat_check(b, n, 0, round);
	shutdown(fd, SHUT_WR);
	EQ(recv(fd, b, 1, 0), 0);
	return 0;
}
int main(int argc, char **argv)
{
	t_init();
	if (argc == 3)
		return go_on(atoi(argv[1]), atoi(argv[2]));
	int port, l = listen_on(&port);
	pid_t server = fork_child();
	if (!server) {
		for (int i = 0; i < ROUNDS; i++) {
			char c[8];
			int fd = accept(l, NULL, NULL), at = 0, n = total(i);
			CHECK(fd >= 0);
			nonblock(fd);
			pat_fill(b, n, 0, i);
			for (int ended = 0; at < n || !ended;) {
				struct pollfd p = { fd, (at < n ? POLLOUT : 0) | (ended ? 0 : POLLIN), 0 };
				EQ(poll(&p, 1, -1), 1);
				ssize_t r = at < n ? send(fd, b + at, n - at < 50000 ? n - at : 50000, MSG_NOSIGNAL) : -1;
				at += r > 0 ? r : 0;
				if (at == n && r > 0)
					EQ(shutdown(fd, SHUT_WR), 0);
				r = ended ? -1 : recv(fd, c, sizeof c, 0);
				ended |= r == 0;
				if (r < 0)
					EQ(errno, EAGAIN);
			}
			close(fd);
		}
		_exit(0);
	}
	close(l);
	for (int i = 0; i < ROUNDS; i++) {
		int fd = connect_to(port);
		if (i % 3)
			send_all(fd, "hello", 5);
		if (i & 1)
			EQ(shutdown(fd, SHUT_WR), 0);
		for (int k = 0; k < i % 4; k++)
			usleep(100); // the other end has written what it can, or not
		pid_t kid = fork_child();
		if (!kid) {
			char x[12], y[12];
			snprintf(x, sizeof x, "%d", fd);
			snprintf(y, sizeof y, "%d", i);
			execl("/proc/self/exe", argv[0], x, y, NULL);
			_exit(9);
		}
		close(fd);
		reap(kid);
	}
	reap(server);
	return t_ok("fork_exec_full");
}
