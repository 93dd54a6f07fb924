// 300 connections between two processes work at once, each with more bytes under way, both ways, than its first buffer
// takes.
#include "t.h"
enum { C = 300, N = 30000 };
int main(void)
{
	t_init();
	int port, l = listen_n(C, &port);
	static int fd[C];
	static unsigned char b[N];
	pid_t kid = fork_child();
	for (int i = 0; i < C; i++) {
		fd[i] = kid ? accept(l, NULL, NULL) : connect_to(port);
		CHECK(fd[i] >= 0);
	}
	for (int round = 0; round < 2; round++) {
		int sends = !kid == !round;
		for (int i = 0; i < C; i++) {
			int k = round ? C - 1 - i : i;
			if (sends) {
				pat_fill(b, N, 0, k);
				send_all(fd[k], b, N);
			} else {
				recv_all(fd[k], b, N);
				pat_check(b, N, 0, k);
			}
		}
	}
	if (!kid)
		_exit(0);
	reap(kid);
	return t_ok("many_large");
}
