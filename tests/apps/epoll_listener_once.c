// A blocking listener in level-triggered epoll is never reported twice for one connect, so that one accept for each
// report never blocks, even if several paths make it ready at once.
#include "t.h"
enum { ROUNDS = 40, BURST = 3 };
int main(void)
{
	t_init();
	int port, l = listen_on(&port), ep = epoll_create1(0);
	struct epoll_event e = { EPOLLIN, { .fd = l } }, got[16];
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, l, &e), 0);
	for (int r = 0; r < ROUNDS; r++) {
		struct sig a, b;
		sigpair(&a, &b);
		pid_t client = fork_child(); // a new one each time, which nobody knows yet
		if (!client) {
			int fd[BURST];
			for (int i = 0; i < BURST; i++) {
				fd[i] = connect_to(port);
				send_all(fd[i], "?", 1);
				// The first call on a connection that began on TCP may offer more.
				ready(fd[i], POLLIN, 0);
			}
			tell(b);
			for (int i = 0; i < BURST; i++)
				recv_all(fd[i], &(char){ 0 }, 1);
			_exit(0);
		}
		await(a);
		int fd[BURST];
		for (int taken = 0; taken < BURST;) {
			int n = epoll_wait(ep, got, 16, -1);
			CHECK(n > 0);
			for (int i = 0; i < n; i++)
				for (int k = i + 1; k < n; k++)
					if (got[i].data.fd == got[k].data.fd)
						die("descriptor %d is reported twice in one call", got[i].data.fd);
			EQ(got[0].data.fd, l);
			fd[taken] = accept(l, NULL, NULL);
			CHECK(fd[taken++] >= 0);
		}
		for (int i = 0; i < BURST; i++) {
			recv_all(fd[i], &(char){ 0 }, 1);
			send_all(fd[i], "!", 1);
			close(fd[i]);
		}
		reap(client);
		for (int i = 0; i < 2; i++) {
			close(i ? a.r : a.w);
			close(i ? b.r : b.w);
		}
	}
	return t_ok("epoll_listener_once");
}
