// A listener that a program has from the one before it (exec) accepts the connections of a client in the order in which that
// has made them, also where other processes might have the listener, too: more connects than a client makes links for wait
// while the server does something else.
#include "t.h"
enum { C = 60 };
static int served(int fd)
{
	int k = -1;
	CHECK(fd >= 0);
	recv_all(fd, &k, sizeof k);
	return k;
}
static int server(char **argv)
{
	int l;
	struct sig s = outsiders(argv, &l);
	tell(s);
	for (int round = 0; round < 3; round++) {
		EQ(served(accept(l, NULL, NULL)), 0);
		tell(s);
		await(s); // the others wait
		for (int k = 1; k < C; k++)
			EQ(served(accept(l, NULL, NULL)), k);
		tell(s);
	}
	return 0;
}
int main(int argc, char **argv)
{
	if (argc > 1)
		return server(argv);
	t_init();
	struct sig ours, its;
	sigpair(&ours, &its);
	int port, l = listen_n(C, &port);
	pid_t kid = fork_child();
	if (!kid) {
		char n[3][16], *args[] = { "server", n[0], n[1], n[2], NULL };
		snprintf(n[0], 16, "%d", l);
		snprintf(n[1], 16, "%d", its.r);
		snprintf(n[2], 16, "%d", its.w);
		execv("/proc/self/exe", args);
		_exit(9);
	}
	close(l);
	await(ours); // the server is the program that has inherited the listener
	for (int round = 0; round < 3; round++) {
		int fd[C];
		for (int k = 0; k < C; k++) {
			fd[k] = connect_to(port);
			send_all(fd[k], &k, sizeof k);
			if (k == 0)
				await(ours);
		}
		tell(ours);
		await(ours);
		for (int k = 0; k < C; k++)
			close(fd[k]);
	}
	reap(kid);
	return t_ok("accept_order_adopted");
}
