// A process with an open connection forks again and again and goes on with blocking calls: it keeps no descriptor for
// children that have ended, whatever their number and whatever call it waits in.
#include "t.h"
int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	pid_t peer = fork_child();
	if (!peer) {
		int fd = connect_to(port), n;
		char b[64];
		while ((n = recv(fd, b, sizeof b, 0)) > 0) {
			usleep(2000); // the other side is asleep by then
			send_all(fd, b, n);
		}
		_exit(0);
	}
	int fd = accept(l, NULL, NULL), before = 0;
	char b[8];
	fd_set r;
	struct epoll_event ev = { EPOLLIN, { 0 } };
	int ep = epoll_create1(0);
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev), 0);
	for (int how = 0; how < 4; how++)
		for (int i = 0; i < 70; i++) {
			if (i < 69 || how) {
				pid_t kid = fork();
				if (!kid)
					_exit(0);
				reap(kid);
			}
			if (i % 23 && i != 69)
				continue;
			for (int k = 0; k < 3; k++) {
				send_all(fd, "ping", 4);
				switch (how) {
				case 0: break;
				case 1: EQ(ready(fd, POLLIN, 5000), POLLIN); break;
				case 2:
					FD_ZERO(&r);
					FD_SET(fd, &r);
					EQ(select(fd + 1, &r, NULL, NULL, NULL), 1);
					break;
				default: EQ(epoll_wait(ep, &ev, 1, 5000), 1);
				}
				recv_all(fd, b, 4);
			}
			if (!before)
				before = descriptors(getpid());
			else if (descriptors(getpid()) > before + 4)
				die("%d descriptors after %d forks, %d before", descriptors(getpid()), how * 70 + i, before);
		}
	close(fd);
	reap(peer);
	return t_ok("fork_many");
}
