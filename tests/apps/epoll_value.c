// The program's value comes back as it was given, whatever it looks like and by whichever call it was given: also one
// that has the form of the library's own values, in an instance that has nothing else for the library to do.
#include "t.h"
static void expect(int ep, uint64_t value)
{
	struct epoll_event ev;
	EQ(epoll_wait(ep, &ev, 1, 0), 1);
	CHECK(ev.events & EPOLLHUP);
	EQ(ev.data.u64, value);
	EQ(epoll_wait(ep, &ev, 1, 1000), 1);
	EQ(ev.data.u64, value);
}
static void give(int ep, int op, int fd, uint64_t value)
{
	struct epoll_event ev = { EPOLLIN, { .u64 = value } };
	EQ(epoll_ctl(ep, op, fd, &ev), 0);
}
int main(void)
{
	t_init();
	static const uint64_t values[] = { 1, 0xACC7000000000009ull, 0xACC5000001000001ull, 2, 3, 0xACC5000001000001ull };
	enum { N = sizeof values / sizeof *values };
	for (int first = 0; first < N; first++) {
		int ep = epoll_create1(0), s = socket(AF_INET, SOCK_STREAM, 0); // not connected: the kernel reports EPOLLHUP
		CHECK(ep >= 0 && s >= 0);
		give(ep, EPOLL_CTL_ADD, s, values[first]);
		expect(ep, values[first]);
		for (int i = 1; i < N; i++) {
			give(ep, EPOLL_CTL_MOD, s, values[(first + i) % N]);
			expect(ep, values[(first + i) % N]);
		}
		EQ(epoll_ctl(ep, EPOLL_CTL_DEL, s, NULL), 0);
		struct epoll_event ev;
		EQ(epoll_wait(ep, &ev, 1, 0), 0);
		close(s);
		close(ep);
	}
	return t_ok("epoll_value");
}
