// A process forks with many connections that the server, which does nothing at all, has not accepted yet: the fork does
// not wait for the server, and afterwards every connection works.
#include "t.h"
enum { C = 480 };
int main(void)
{
	t_init();
	int port, l = listen_n(600, &port), go[2];
	EQ(pipe(go), 0);
	pid_t kid = fork_child();
	if (!kid) {
		static int fd[C];
		for (int i = 0; i < C; i++)
			fd[i] = connect_to(port);
		double t = now();
		pid_t grandchild = fork_child();
		if (!grandchild)
			_exit(0);
		CHECK(now() - t < 5);
		reap(grandchild);
		EQ(write(go[1], "", 1), 1);
		for (int i = 0; i < C; i++) {
			int back;
			send_all(fd[i], &i, sizeof i);
			recv_all(fd[i], &back, sizeof back);
			EQ(back, i);
		}
		_exit(0);
	}
	char b;
	EQ(read(go[0], &b, 1), 1);
	for (int i = 0; i < C; i++) {
		int n, c = accept(l, NULL, NULL);
		CHECK(c >= 0);
		recv_all(c, &n, sizeof n);
		send_all(c, &n, sizeof n);
	}
	reap(kid);
	return t_ok("fork_unread");
}
