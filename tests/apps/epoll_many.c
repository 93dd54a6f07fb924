// With 500 connections in one epoll set, of which a few are active at a time, every message is answered exactly once.
#include "t.h"
enum { C = 500, ROUNDS = 4000 };
int main(void)
{
	t_init();
	int port, l = listen_n(600, &port);
	pid_t kid = fork_child();
	if (!kid) {
		static int fd[C];
		unsigned x = 1;
		char b[8];
		for (int i = 0; i < C; i++)
			fd[i] = connect_to(port);
		for (int r = 0; r < ROUNDS; r++) {
			int pick[5];
			for (int k = 0; k < 5; k++) {
				x = x * 1103515245 + 12345;
				pick[k] = (x >> 8) % C;
				send_all(fd[pick[k]], &pick[k], 4);
			}
			for (int k = 0; k < 5; k++) {
				recv_all(fd[pick[k]], b, 4);
				CHECK(!memcmp(b, &pick[k], 4));
			}
		}
		for (int i = 0; i < C; i++)
			FAILS(recv(fd[i], b, 1, MSG_DONTWAIT), EAGAIN);
		_exit(0);
	}
	int ep = epoll_create1(0), open_ = 0, seen = 0;
	struct epoll_event e = { EPOLLIN, { .fd = l } }, ev[64];
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, l, &e), 0);
	while (seen < C || open_) {
		int n = epoll_wait(ep, ev, 64, -1);
		CHECK(n > 0);
		for (int i = 0; i < n; i++) {
			int fd = ev[i].data.fd;
			char b[64];
			if (fd == l) {
				int c = accept(l, NULL, NULL);
				CHECK(c >= 0);
				e = (struct epoll_event){ EPOLLIN | (seen & 1 ? EPOLLET : 0), { .fd = c } };
				EQ(epoll_ctl(ep, EPOLL_CTL_ADD, c, &e), 0);
				seen++, open_++;
				continue;
			}
			ssize_t r = recv(fd, b, sizeof b, MSG_DONTWAIT);
			if (r > 0)
				send_all(fd, b, r);
			else if (r == 0) {
				close(fd);
				open_--;
			} else
				die("an event and nothing to read: %zd", r);
		}
	}
	reap(kid);
	return t_ok("epoll_many");
}
