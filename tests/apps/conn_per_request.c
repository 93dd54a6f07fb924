// A client connects, requests, gets an answer and closes 20,000 times in two processes, and then several clients do so
// at once.
#include "t.h"
enum { R = 10000 }; // 20,000 in all
static int port;
static void client(int n, unsigned id)
{
	for (int i = 0; i < n; i++) {
		int fd = connect_to(port);
		abortive(fd); // no TIME_WAIT: plain TCP would run out of ports
		unsigned v = id + i;
		send_all(fd, &v, 4);
		recv_all(fd, &v, 4);
		EQ(v, id + i + 1);
		close(fd);
	}
	_exit(0);
}
int main(void)
{
	t_init();
	int l = listen_n(100, &port), open_ = 0, left = 2 * R, ep = epoll_create1(0);
	pid_t k[4];
	for (int i = 0; i < 4; i++)
		if (!(k[i] = fork_child()))
			client(R / 2, i << 20);
	struct epoll_event e = { EPOLLIN, { .fd = l } }, ev[32];
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, l, &e), 0);
	nonblock(l);
	while (left || open_) {
		int n = epoll_wait(ep, ev, 32, -1);
		CHECK(n > 0);
		for (int i = 0; i < n; i++) {
			if (ev[i].data.fd == l) {
				int c = accept(l, NULL, NULL);
				if (c < 0)
					continue;
				e = (struct epoll_event){ EPOLLIN, { .fd = c } };
				EQ(epoll_ctl(ep, EPOLL_CTL_ADD, c, &e), 0);
				open_++, left--;
				continue;
			}
			unsigned v;
			int fd = ev[i].data.fd;
			ssize_t r = recv(fd, &v, 4, 0);
			if (r == 4) {
				v++;
				send_all(fd, &v, 4);
			} else {
				CHECK(r == 0 || errno == ECONNRESET);
				close(fd);
				open_--;
			}
		}
	}
	for (int i = 0; i < 4; i++)
		reap(k[i]);
	return t_ok("conn_per_request");
}
