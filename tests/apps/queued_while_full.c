// A connection waits for several seconds at a server that accepts nothing, while clients without acceleration have
// filled the kernel's queue of the same listener. It was not refused, so it goes on waiting and is accepted when the
// server gets to it.
#include "t.h"
enum { MOST = 8, WAITS_MS = 8000 };
static int filler(char **argv)
{
	int port;
	struct sig s = outsiders(argv, &port);
	struct sockaddr_in a = addr4(port);
	for (int i = 0, full = 0; i < MOST && !full; i++) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
		CHECK(fd >= 0);
		FAILS(connect(fd, (struct sockaddr *)&a, sizeof a), EINPROGRESS);
		full = ready(fd, POLLOUT, 100) == 0;
		if (!full)
			EQ(send(fd, "f", 1, 0), 1);
	}
	tell(s);
	await(s);
	return 0;
}
int main(int argc, char **argv)
{
	if (argc > 1)
		return filler(argv);
	t_init();
	int port, l = listen_n(1, &port);
	struct sig of_filler[2], end, of_client[2];
	sigpair(&of_filler[0], &of_filler[1]);
	sigpair(&of_client[0], &of_client[1]);
	pid_t sharer = idle_child(&end);
	pid_t client = fork_child();
	if (!client) {
		close(l);
		char b;
		int first = connect_to(port), fd = connect_to(port);
		EQ(send(fd, "c", 1, 0), 1);
		tell(of_client[1]);
		EQ(recv(first, &b, 1, 0), 1); // the server knows where `fd` waits
		await(of_client[1]); // the kernel's queue is full
		EQ(ready(fd, POLLIN, WAITS_MS), 0);
		tell(of_client[1]);
		EQ(recv(fd, &b, 1, 0), 1);
		EQ(b, 'c');
		_exit(0);
	}
	await(of_client[0]);
	int first = accept(l, NULL, NULL);
	CHECK(first >= 0);
	EQ(send(first, "1", 1, 0), 1);
	pid_t fills = fork_child();
	if (!fills) {
		close(l);
		go_outside(port, of_filler[1]);
	}
	await(of_filler[0]);
	tell(of_client[0]);
	// The server looks at its listener again and again, and accepts nothing.
	while (!ready(of_client[0].r, POLLIN, 50))
		EQ(ready(l, POLLIN, 20000), POLLIN);
	await(of_client[0]);
	for (char b = 0; b != 'c';) {
		EQ(ready(l, POLLIN, 20000), POLLIN);
		int s = accept(l, NULL, NULL);
		CHECK(s >= 0);
		EQ(recv(s, &b, 1, 0), 1);
		if (b == 'c')
			EQ(send(s, &b, 1, 0), 1);
	}
	tell(of_filler[0]);
	tell(end);
	reap(client), reap(fills), reap(sharer);
	return t_ok("queued_while_full");
}
