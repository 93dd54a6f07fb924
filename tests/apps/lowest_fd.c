// Every new descriptor gets the lowest free number, as POSIX requires and programs rely on, so no hidden descriptor
// lies in between.
#include "t.h"
static int lowest(void)
{
	int f = open("/dev/null", O_RDONLY);
	close(f);
	return f;
}
int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	connect_to(port); // the first connection may make the library set things up
	close(accept(l, NULL, NULL));
	for (int round = 0; round < 3; round++) {
		int n = lowest();
		int s = socket(AF_INET, SOCK_STREAM, 0);
		EQ(s, n);
		struct sockaddr_in a = addr4(port);
		n = lowest();
		EQ(connect(s, (struct sockaddr *)&a, sizeof a), 0);
		EQ(lowest(), n); // connect takes no number
		int c = accept(l, NULL, NULL);
		EQ(c, n);
		int d = dup(c);
		EQ(d, c + 1);
		close(c);
		EQ(lowest(), c);
		EQ(socket(AF_INET, SOCK_STREAM, 0), c);
		int ep = epoll_create1(0);
		struct epoll_event e = { EPOLLIN, { 0 } };
		int free_ = lowest();
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, s, &e), 0);
		EQ(ready(s, POLLIN, 1), 0);
		EQ(epoll_wait(ep, &e, 1, 1), 0);
		send_all(d, "x", 1);
		CHECK(ready(s, POLLIN, 1000));
		EQ(lowest(), free_); // nor do waiting and data
		int l2port, l2 = listen_on(&l2port);
		EQ(l2, free_);
		EQ(lowest(), free_ + 1); // listen takes no low number either
		close(l2);
		close(ep);
		close(d);
		close(c);
		close(s);
		EQ(lowest(), n - 1);
	}
	return t_ok("lowest_fd");
}
