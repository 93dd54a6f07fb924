// Several processes of one side sleep on a connection whose peer sends byte after byte and then demotes the connection:
// each of them receives the socket, although they take wake-up bytes from one another, and all see the end.
#include "t.h"
enum { READERS = 3, BYTES = 40 };
static void follow(int fd, int counts)
{
	char b[64];
	int got = 0;
	for (;;) {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		EQ(poll(&p, 1, -1), 1);
		ssize_t r = recv(fd, b, sizeof b, MSG_DONTWAIT);
		if (r > 0)
			got += r;
		else if (!r)
			break;
		else
			EQ(errno, EAGAIN);
	}
	EQ(write(counts, &got, sizeof got), sizeof got);
}
static void round_of(int l, int port)
{
	int fd = connect_to(port), peer = accept(l, NULL, NULL), counts[2], sum = 0;
	EQ(pipe(counts), 0);
	pid_t readers[READERS];
	for (int i = 0; i < READERS; i++)
		if (!(readers[i] = fork_child())) {
			close(fd);
			close(l);
			follow(peer, counts[1]);
			_exit(0);
		}
	close(peer);
	for (int i = 0; i < BYTES; i++) {
		send_all(fd, "x", 1);
		for (volatile int n = rand() % 20000; n; n--)
			;
	}
	EQ(fcntl(fd, F_SETOWN, getpid()), 0); // a kernel socket from here on
	for (int i = 0; i < BYTES; i++)
		send_all(fd, "y", 1);
	close(fd);
	for (int i = 0; i < READERS; i++) {
		int n;
		EQ(read(counts[0], &n, sizeof n), sizeof n);
		sum += n;
	}
	for (int i = 0; i < READERS; i++)
		reap(readers[i]);
	EQ(sum, 2 * BYTES);
	close(counts[0]);
	close(counts[1]);
}
int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	for (int i = 0; i < 40; i++)
		round_of(l, port);
	return t_ok("sharers_follow");
}
