// The peer is killed before its connection is registered with epoll for the first time: the end is reported, also by a
// call that does not wait.
#include "t.h"
int main(void)
{
	t_init();
	for (int round = 0; round < 4; round++) {
		int up[2], port, unread = round & 1;
		EQ(pipe(up), 0);
		pid_t server = fork_child();
		if (!server) {
			int l = listen_on(&port);
			EQ(write(up[1], &port, sizeof port), sizeof port);
			char c;
			int fd = accept(l, NULL, NULL);
			recv_all(fd, &c, 1);
			EQ(write(up[1], "x", 1), 1);
			for (;;)
				pause();
		}
		EQ(read(up[0], &port, sizeof port), sizeof port);
		char c;
		int fd = connect_to(port), ep = epoll_create1(0);
		send_all(fd, "x", 1);
		EQ(read(up[0], &c, 1), 1);
		if (unread)
			send_all(fd, "y", 1);
		kill(server, SIGKILL);
		reap_killed(server);
		struct epoll_event e = { .events = EPOLLIN };
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e), 0);
		if (round & 2)
			for (int i = 0; !epoll_wait(ep, &e, 1, 0); i++, usleep(1000))
				CHECK(i < 10000);
		else
			EQ(epoll_wait(ep, &e, 1, 10000 * patience()), 1);
		CHECK(e.events & EPOLLIN);
		if (unread)
			FAILS(recv(fd, &c, 1, 0), ECONNRESET);
		else
			EQ(recv(fd, &c, 1, 0), 0);
		close(fd);
		close(ep);
		close(up[0]);
		close(up[1]);
	}
	return t_ok("epoll_after_kill");
}
