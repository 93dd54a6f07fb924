// A server in epoll_wait forks, and the child closes all descriptors before it goes on, as subprocess modules do: the
// parent gets events of its connections and of new ones as before.
#include "t.h"
enum { CONNS = 8, ROUNDS = 30 };
int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	struct sig a, b;
	sigpair(&a, &b);
	pid_t client = fork_child();
	if (!client) {
		int fd[CONNS];
		close(l);
		for (int i = 0; i < CONNS; i++)
			fd[i] = connect_to(port);
		for (int r = 0; r < ROUNDS; r++) {
			await(b);
			for (int i = 0; i < CONNS; i++)
				send_all(fd[i], "?", 1);
			for (int i = 0; i < CONNS; i++) {
				char c;
				recv_all(fd[i], &c, 1);
			}
			int once = connect_to(port);
			send_all(once, "?", 1);
			recv_all(once, &(char){ 0 }, 1);
			close(once);
			tell(b);
		}
		_exit(0);
	}
	int ep = epoll_create1(0), served = 0, ended = 0;
	struct epoll_event ev = { .events = EPOLLIN, .data.fd = l };
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, l, &ev), 0);
	ev.data.fd = a.r;
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, a.r, &ev), 0);
	for (int begun = 0, round = 0; round < ROUNDS;) {
		struct epoll_event got[16];
		if (served - ended >= CONNS && begun == round) {
			pid_t k = fork_child();
			if (!k) {
				if (round & 1)
					EQ(close_range(3, ~0u, 0), 0);
				for (int i = 3; i < 100; i++)
					close(i);
				_exit(0);
			}
			if (round % 3)
				reap(k);
			begun++;
			tell(a);
		}
		int n = epoll_wait(ep, got, 16, -1);
		CHECK(n > 0);
		for (int i = 0; i < n; i++) {
			char c;
			int fd = got[i].data.fd;
			if (fd == a.r) {
				await(a);
				round++;
			} else if (fd == l) {
				fd = accept(l, NULL, NULL);
				CHECK(fd >= 0);
				ev.data.fd = fd;
				EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev), 0);
				served++;
			} else if (recv(fd, &c, 1, 0) == 1) {
				send_all(fd, &c, 1);
			} else {
				close(fd);
				ended++;
			}
		}
	}
	while (wait(NULL) > 0)
		;
	return t_ok("fork_close_all");
}
