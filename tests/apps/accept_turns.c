// A client that is not accelerated is accepted although accelerated clients always wait at the same server.
#include "t.h"
enum { WAIT = 64, SOON = 20000 };
static int outsider(char **argv)
{
	int port;
	struct sig s = outsiders(argv, &port);
	int fd = connect_to(port);
	EQ(send(fd, "o", 1, 0), 1);
	tell(s);
	await(s);
	return 0;
}
int main(int argc, char **argv)
{
	if (argc > 1)
		return outsider(argv);
	t_init();
	int port, l = listen_n(2 * WAIT, &port);
	struct sig of_outsider[2], of_client[2];
	sigpair(&of_outsider[0], &of_outsider[1]);
	sigpair(&of_client[0], &of_client[1]);
	pid_t kid = fork_child();
	if (!kid) {
		int fd[WAIT];
		for (int i = 0; i < WAIT; i++)
			EQ(send(fd[i] = connect_to(port), "c", 1, 0), 1);
		tell(of_client[1]);
		// One more connection is made before each is accepted, so that the queue is never empty.
		for (int i = 0;; i++) {
			char go;
			EQ(read(of_client[1].r, &go, 1), 1);
			if (go == 'e')
				_exit(0);
			close(fd[i % WAIT]);
			EQ(send(fd[i % WAIT] = connect_to(port), "c", 1, 0), 1);
			tell(of_client[1]);
		}
	}
	await(of_client[0]);
	pid_t other = fork_child();
	if (!other) {
		close(l);
		go_outside(port, of_outsider[1]);
	}
	await(of_outsider[0]);
	int round = 0;
	for (char b = 0; b != 'o'; round++) {
		CHECK(round < SOON);
		int c = accept(l, NULL, NULL);
		CHECK(c >= 0);
		recv_all(c, &b, 1);
		close(c);
		if (b == 'c') {
			EQ(write(of_client[0].w, "g", 1), 1);
			await(of_client[0]);
		}
	}
	EQ(write(of_client[0].w, "e", 1), 1);
	tell(of_outsider[0]);
	reap(kid), reap(other);
	return t_ok("accept_turns");
}
