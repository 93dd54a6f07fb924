// The program's value comes back as it was given, whatever it looks like and by whichever call it was given: also one
// that has the form of the library's own values, in an instance that has nothing else for the library to do.
#include "t.h"
static unsigned said;
static void expect(int ep, uint64_t value)
{
	struct epoll_event ev;
	EQ(epoll_wait(ep, &ev, 1, 0), 1);
	EQ(ev.events & said, said);
	EQ(ev.data.u64, value);
	EQ(epoll_wait(ep, &ev, 1, 1000), 1);
	EQ(ev.data.u64, value);
}
static void give(int ep, int op, int fd, uint64_t value)
{
	struct epoll_event ev = { EPOLLIN, { .u64 = value } };
	EQ(epoll_ctl(ep, op, fd, &ev), 0);
}
static const uint64_t values[] = { 1, 0xACC7000000000009ull, 0xACC5000001000001ull, 2, 3, 0xACC5000001000001ull };
enum { N = sizeof values / sizeof *values };
// `beside`: an accelerated connection that the instance has as well, or -1.
static void all(int s, int beside)
{
	struct epoll_event ev;
	for (int first = 0; first < N; first++) {
		int ep = epoll_create1(0);
		CHECK(ep >= 0);
		if (beside >= 0)
			give(ep, EPOLL_CTL_ADD, beside, 4);
		give(ep, EPOLL_CTL_ADD, s, values[first]);
		FAILS(epoll_ctl(ep, EPOLL_CTL_ADD, s, &(struct epoll_event){ EPOLLIN, { .u64 = 1 } }), EEXIST);
		expect(ep, values[first]);
		for (int i = 1; i < N; i++) {
			give(ep, EPOLL_CTL_MOD, s, values[(first + i) % N]);
			expect(ep, values[(first + i) % N]);
		}
		EQ(epoll_ctl(ep, EPOLL_CTL_DEL, s, NULL), 0);
		EQ(epoll_wait(ep, &ev, 1, 0), 0);
		close(ep);
	}
}
int main(void)
{
	t_init();
	int s = socket(AF_INET, SOCK_STREAM, 0), p[2], q[2]; // not connected: the kernel reports EPOLLHUP
	CHECK(s >= 0);
	said = EPOLLHUP;
	pair(q);
	all(s, -1);
	all(s, q[0]);
	close(s);
	said = EPOLLIN;
	pair(p);
	send_all(p[1], "x", 1);
	all(p[0], q[0]);
	EQ(fcntl(p[0], F_SETOWN, getpid()), 0); // the kernel's from here on
	all(p[0], -1);
	all(p[0], q[0]);
	return t_ok("epoll_value");
}
