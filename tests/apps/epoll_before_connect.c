// A socket that is in an epoll set from its creation reports EPOLLHUP|EPOLLOUT first, and then its connect, whether
// that blocks, does not block or is refused.
#include "t.h"
int main(void)
{
	t_init();
	for (int et = 0; et < 2; et++)
		for (int nb = 0; nb < 2; nb++) {
			int port, l = listen_on(&port), ep = epoll_create1(0);
			int fd = socket(AF_INET, SOCK_STREAM | (nb ? SOCK_NONBLOCK : 0), 0);
			struct epoll_event e = { EPOLLIN | EPOLLOUT | EPOLLRDHUP | (et ? EPOLLET : 0), { .u32 = 9 } }, ev[2];
			EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e), 0);
			EQ(epoll_wait(ep, ev, 2, 0), 1);
			EQ(ev[0].events, EPOLLOUT | EPOLLHUP);
			EQ(epoll_wait(ep, ev, 2, 0), !et);
			struct sockaddr_in a = addr4(port);
			int r = connect(fd, (struct sockaddr *)&a, sizeof a);
			if (nb)
				CHECK(r == -1 && errno == EINPROGRESS);
			else
				EQ(r, 0);
			int x = epoll_wait(ep, ev, 2, 1000);
			EQ(x, 1);
			EQ(ev[0].events, EPOLLOUT);
			int s = accept(l, NULL, NULL);
			CHECK(s >= 0);
			send_all(s, "hi", 2);
			CHECK(ready(fd, POLLIN, 1000));
			EQ(epoll_wait(ep, ev, 2, 1000), 1);
			EQ(ev[0].events, EPOLLIN | EPOLLOUT);
			char b[4];
			EQ(recv(fd, b, 4, 0), 2);
			close(s);
			CHECK(ready(fd, POLLRDHUP, 1000));
			EQ(epoll_wait(ep, ev, 2, 1000), 1);
			EQ(ev[0].events, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
			close(fd);
			EQ(epoll_wait(ep, ev, 2, 0), 0);
			close(l);
			// refused
			fd = socket(AF_INET, SOCK_STREAM | (nb ? SOCK_NONBLOCK : 0), 0);
			EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e), 0);
			EQ(epoll_wait(ep, ev, 2, 0), 1);
			FAILS(connect(fd, (struct sockaddr *)&a, sizeof a), nb ? EINPROGRESS : ECONNREFUSED);
			EQ(epoll_wait(ep, ev, 2, 1000), 1);
			if (nb)
				EQ(ev[0].events, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLERR | EPOLLHUP);
			else
				EQ(ev[0].events, EPOLLOUT | EPOLLHUP); // the error is consumed: unconnected again
			close(fd);
			close(ep);
		}
	return t_ok("epoll_before_connect");
}
