// Edge-triggered epoll reports one event per arrival and none without news; a whole edge-triggered transfer works in
// both directions.
#include "t.h"
int main(void)
{
	t_init();
	int p[2], ep = epoll_create1(0);
	pair(p);
	expect_shm(p[0]);
	struct epoll_event e = { EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, { .fd = p[0] } }, ev[4];
	char b[100];
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, p[0], &e), 0);
	EQ(epoll_wait(ep, ev, 4, 1000), 1); // what is ready at ADD counts as news
	EQ(ev[0].events, EPOLLOUT);
	EQ(epoll_wait(ep, ev, 4, 0), 0);
	send_all(p[1], "abc", 3);
	EQ(epoll_wait(ep, ev, 4, 1000), 1);
	EQ(ev[0].events, EPOLLIN | EPOLLOUT);
	EQ(epoll_wait(ep, ev, 4, 0), 0); // unread, and no news
	send_all(p[1], "def", 3); // news although the first is unread
	EQ(epoll_wait(ep, ev, 4, 1000), 1);
	EQ(ev[0].events, EPOLLIN | EPOLLOUT);
	EQ(recv(p[0], b, 1, 0), 1);
	EQ(epoll_wait(ep, ev, 4, 0), 0);
	EQ(epoll_ctl(ep, EPOLL_CTL_MOD, p[0], &e), 0); // MOD asks anew
	EQ(epoll_wait(ep, ev, 4, 0), 1);
	EQ(ev[0].events, EPOLLIN | EPOLLOUT);
	EQ(recv(p[0], b, 100, 0), 5);
	EQ(epoll_wait(ep, ev, 4, 0), 0);
	// fill, drain, EPOLLOUT comes once room is there
	static char big[1 << 16];
	nonblock(p[0]);
	long sum = 0;
	ssize_t r;
	do {
		while ((r = send(p[0], big, sizeof big, 0)) > 0)
			sum += r;
		EQ(errno, EAGAIN);
	} while (epoll_wait(ep, ev, 4, 50) > 0);
	while (sum > 0) {
		r = recv(p[1], big, sizeof big, 0);
		CHECK(r > 0);
		sum -= r;
	}
	EQ(epoll_wait(ep, ev, 4, 1000), 1);
	EQ(ev[0].events, EPOLLOUT);
	EQ(shutdown(p[1], SHUT_WR), 0);
	EQ(epoll_wait(ep, ev, 4, 1000), 1);
	EQ(ev[0].events, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
	EQ(epoll_wait(ep, ev, 4, 0), 0);
	EQ(recv(p[0], b, 1, 0), 0);
	EQ(close(p[1]), 0);
	EQ(close(p[0]), 0);
	// transfer with ET on both ends of a new pair: drain until EAGAIN, then wait
	enum { TOTAL = 20000000 };
	static unsigned char buf[70000];
	int tx[2] = { 0, 0 }, rx[2] = { 0, 0 };
	pair(p);
	for (int i = 0; i < 2; i++) {
		nonblock(p[i]);
		e = (struct epoll_event){ EPOLLIN | EPOLLOUT | EPOLLET, { .u32 = i } };
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, p[i], &e), 0);
	}
	while (rx[0] < TOTAL || rx[1] < TOTAL) {
		int n = epoll_wait(ep, ev, 4, 5000);
		if (n <= 0)
			die("no event with %d and %d of %d received", rx[0], rx[1], TOTAL);
		for (int k = 0; k < n; k++) {
			int i = ev[k].data.u32;
			if (ev[k].events & EPOLLIN)
				while ((r = recv(p[i], buf, sizeof buf, 0)) > 0) {
					pat_check(buf, r > 64 ? 64 : r, rx[i], !i);
					rx[i] += r;
				}
			if (ev[k].events & EPOLLOUT)
				while (tx[i] < TOTAL) {
					int want = TOTAL - tx[i] < 50000 ? TOTAL - tx[i] : 50000;
					pat_fill(buf, want, tx[i], i);
					r = send(p[i], buf, want, 0);
					if (r < 0)
						break;
					tx[i] += r;
				}
		}
	}
	return t_ok("epoll_et");
}
