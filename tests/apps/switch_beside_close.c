// One side becomes a kernel socket while the other one reads the remaining bytes and closes, or exits: all bytes that
// the latter has sent arrive, and then the end, as with TCP, with and without a child that shares the connection and
// leaves it at the same time.
#include "t.h"
enum { ROUNDS = 200, SHORT = 100, LONG = 240000 };
static int begin[2], written[2];
static void leaves(int port, int shared, int exits, unsigned delay)
{
	static unsigned char b[LONG];
	char c;
	int fd = connect_to(port);
	pat_fill(b, sizeof b, 0, 1);
	recv_all(fd, &c, 1);
	ssize_t n = send(fd, b, sizeof b, MSG_DONTWAIT);
	CHECK(n > 0);
	pid_t kid = shared ? fork_child() : -1;
	if (kid)
		EQ(write(written[1], &n, sizeof n), sizeof n);
	EQ(read(begin[0], &c, 1), 1);
	for (volatile unsigned i = 0; i < delay; i++)
		;
	if (kid)
		recv_all(fd, b, SHORT);
	if (!exits)
		close(fd);
	if (kid > 0)
		reap(kid);
	_exit(0);
}
int main(void)
{
	static unsigned char b[LONG];
	t_init();
	int port, l = listen_on(&port);
	EQ(pipe(begin), 0);
	EQ(pipe(written), 0);
	for (int i = 0; i < ROUNDS; i++) {
		int shared = i % 2;
		pid_t peer = fork_child();
		if (!peer)
			leaves(port, shared, i / 2 % 2, rand() % 100000);
		int fd = accept(l, NULL, NULL);
		size_t got = 0;
		ssize_t n, r;
		memset(b, 'x', 1 + SHORT);
		send_all(fd, b, 1 + SHORT);
		EQ(read(written[0], &n, sizeof n), sizeof n);
		EQ(write(begin[1], b, 1 + shared), 1 + shared);
		EQ(fcntl(fd, F_SETOWN, getpid()), 0); // a kernel socket from here on
		reap(peer);
		while ((r = recv(fd, b, sizeof b, 0)) > 0) {
			pat_check(b, r, got, 1);
			got += r;
		}
		if (r || got != (size_t)n)
			die("round %d: errno %d after %zu of %zd bytes", i, r ? errno : 0, got, n);
		close(fd);
	}
	return t_ok("switch_beside_close");
}
