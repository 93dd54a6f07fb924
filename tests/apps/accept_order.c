// A server that serves one connection at a time must accept the connections of one client in the order in which they
// were made, whichever transport each of them uses: otherwise it would wait for bytes of a connection whose client
// waits for the answer on another. Another process has the listener too, and accepts nothing.
#include "t.h"
enum { LOT = 12, WAITS_MS = 1500 };
static int dial(int port, int plain)
{
	struct sockaddr_in a = addr4(port);
	int fd = socket(AF_INET, SOCK_STREAM, 0), least = 1;
	CHECK(fd >= 0);
	if (plain) // an option that matters to packets only
		EQ(setsockopt(fd, IPPROTO_IP, IP_MINTTL, &least, sizeof least), 0);
	EQ(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
	return fd;
}
static void talk(const int *fd, int n)
{
	for (int i = 0; i < n; i++) {
		int back;
		send_all(fd[i], &i, sizeof i);
		recv_all(fd[i], &back, sizeof back);
		EQ(back, i);
		close(fd[i]);
	}
}
static void serve(int l, int n)
{
	for (int i = 0; i < n; i++) {
		int got, c = accept(l, NULL, NULL);
		CHECK(c >= 0);
		recv_all(c, &got, sizeof got);
		EQ(got, i);
		send_all(c, &got, sizeof got);
		close(c);
	}
}
static void client(int port, struct sig server)
{
	int fd[3 * LOT], n = 0;
	// The connections wait long enough to be made again by another transport, and others come after them.
	for (int lot = 0; lot < 3; lot++) {
		for (int i = 0; i < LOT; i++)
			fd[n++] = dial(port, 0);
		if (lot < 2)
			EQ(ready(fd[n - 1], POLLIN, WAITS_MS), 0);
	}
	tell(server);
	talk(fd, n);
	// Some go by TCP from the beginning.
	for (n = 0; n < 3 * LOT; n++)
		fd[n] = dial(port, n % 3 == 1);
	tell(server);
	talk(fd, n);
}
int main(void)
{
	t_init();
	int port, l = listen_n(128, &port);
	struct sig end, of_client[2];
	sigpair(&of_client[0], &of_client[1]);
	pid_t sharer = idle_child(&end);
	pid_t kid = fork_child();
	if (!kid) {
		close(l);
		client(port, of_client[1]);
		_exit(0);
	}
	for (int round = 0; round < 2; round++) {
		await(of_client[0]);
		serve(l, 3 * LOT);
	}
	tell(end);
	reap(kid), reap(sharer);
	return t_ok("accept_order");
}
