// No descriptor is reported twice by one call of epoll_wait, whatever the length of the array was in the call before.
#include "t.h"
int main(void)
{
	t_init();
	enum { P = 3 };
	int p[2], q[P][2], ep = epoll_create1(0);
	pair(p);
	expect_shm(p[1]);
	send_all(p[0], "x", 1);
	struct epoll_event e = { .events = EPOLLIN, .data.u32 = P };
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, p[1], &e), 0);
	for (int i = 0; i < P; i++) {
		EQ(pipe(q[i]), 0);
		EQ(write(q[i][1], "x", 1), 1);
		e.data.u32 = i;
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, q[i][0], &e), 0);
	}
	int both = 0;
	for (int n = 0; n < 2000; n++) {
		// Long enough for the kernel's descriptors to be due.
		for (double end = now() + 0.0002; now() < end;)
			;
		struct epoll_event ev[16];
		int seen[P + 1] = { 0 }, found = epoll_wait(ep, ev, n % 2 ? 16 : 1, -1);
		CHECK(found > 0);
		for (int i = 0; i < found; i++)
			if (seen[ev[i].data.u32]++)
				die("round %d: %u is there twice among %d", n, ev[i].data.u32, found);
		both += seen[P] && seen[0];
	}
	CHECK(both);
	return t_ok("epoll_once");
}
