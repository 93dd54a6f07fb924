// Events come in the order in which the connections became ready: the connection that was written to first is reported
// first, whatever the numbers and ages of the connections are.
#include "t.h"
enum { C = 40, ROUNDS = 50 };
int main(void)
{
	t_init();
	int port, l = listen_n(64, &port), told[2], done[2];
	EQ(pipe(told) | pipe(done), 0);
	pid_t kid = fork_child();
	if (!kid) {
		int fd[C];
		unsigned x = 7;
		char b;
		for (int i = 0; i < C; i++) {
			fd[i] = connect_to(port);
			send_all(fd[i], &i, sizeof i);
		}
		for (int r = 0; r < ROUNDS; r++) {
			char order[C];
			for (int i = 0; i < C; i++)
				order[i] = i;
			for (int i = C - 1; i > 0; i--) {
				x = x * 1103515245 + 12345;
				int j = (x >> 8) % (i + 1);
				char t = order[i];
				order[i] = order[j], order[j] = t;
			}
			EQ(read(done[0], &b, 1), 1);
			for (int i = 0; i < C; i++)
				send_all(fd[(int)order[i]], "x", 1);
			EQ(write(told[1], order, C), C);
		}
		EQ(read(done[0], &b, 1), 1);
		_exit(0);
	}
	int ep = epoll_create1(0);
	for (int i = 0; i < C; i++) {
		int c = accept(l, NULL, NULL), name;
		CHECK(c >= 0);
		recv_all(c, &name, sizeof name);
		struct epoll_event e = { name & 1 ? EPOLLIN : EPOLLIN | EPOLLET, { .u64 = (uint64_t)name << 32 | c } };
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, c, &e), 0);
	}
	for (int r = 0; r < ROUNDS; r++) {
		struct epoll_event ev[2 * C];
		char order[C], b[2];
		// What was reported by level before leaves the ready list only now.
		EQ(epoll_wait(ep, ev, 2 * C, 0), 0);
		EQ(write(done[1], "", 1), 1);
		EQ(read(told[0], order, C), C);
		EQ(epoll_wait(ep, ev, 2 * C, 1000), C);
		for (int i = 0; i < C; i++) {
			EQ(ev[i].data.u64 >> 32, order[i]);
			EQ(recv((int)ev[i].data.u64, b, 2, MSG_DONTWAIT), 1);
		}
	}
	EQ(write(done[1], "", 1), 1);
	reap(kid);
	return t_ok("epoll_order");
}
