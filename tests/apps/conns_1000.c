// 1,000 connections between two processes carry data both ways at once, and then all end in a mixed order.
#include "t.h"
enum { C = 1000 };
static int fd[C];
int main(void)
{
	t_init();
	int port, l = listen_n(C, &port);
	pid_t kid = fork_child();
	for (int i = 0; i < C; i++) {
		fd[i] = kid ? accept(l, NULL, NULL) : connect_to(port);
		CHECK(fd[i] >= 0);
	}
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < C; i++) {
			unsigned v = i * 10 + round;
			if (kid) {
				recv_all(fd[i], &v, 4);
				EQ(v, i * 10 + round);
				v += 7;
				send_all(fd[i], &v, 4);
			} else
				send_all(fd[i], &v, 4);
		}
		for (int i = C - 1; i >= 0 && !kid; i--) {
			unsigned v;
			recv_all(fd[i], &v, 4);
			EQ(v, i * 10 + round + 7);
		}
	}
	for (int i = 0; i < C; i++) {
		char c;
		int k = i * 7 % C;
		if (!kid) {
			close(fd[k]);
			continue;
		}
		EQ(recv(fd[k], &c, 1, 0), 0);
		close(fd[k]);
	}
	if (!kid)
		_exit(0);
	reap(kid);
	return t_ok("conns_1000");
}
