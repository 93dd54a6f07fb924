// Of two processes that share a listener one is switched off: the other one leaves the listener to the kernel as well, as soon as it
// waits on it, and serves what comes there. It must not look again and again at the rendezvous that the first one has ended.
#include "ctl.h"
static void served(int l, int ep)
{
	struct epoll_event ev;
	EQ(epoll_wait(ep, &ev, 1, -1), 1);
	int c = accept(l, NULL, NULL);
	char b[4];
	CHECK(c >= 0);
	recv_all(c, b, 4);
	send_all(c, b, 4);
	recv(c, b, 1, 0);
	close(c);
}
static void asks(int port, struct sig go)
{
	for (int i = 0; i < 2; i++) {
		char b[4];
		await(go);
		int c = connect_to(port);
		send_all(c, "abcd", 4);
		recv_all(c, b, 4);
		close(c);
	}
	_exit(0);
}
int main(void)
{
	t_init();
	int port, l = listen_on(&port), ep = epoll_create1(0);
	struct sig mine, its;
	struct epoll_event ev = { .events = EPOLLIN };
	sigpair(&mine, &its);
	pid_t client = fork_child();
	if (!client) {
		close(l);
		asks(port, its);
	}
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, l, &ev), 0);
	pid_t sharer = fork_child();
	if (!sharer) {
		// It sleeps in a call by which it hears of netacc_ctl, and takes nothing.
		for (;;)
			ready(l, 0, -1);
	}
	tell(mine);
	served(l, ep);
	ctl("off", sharer);
	// It sleeps, and does not use the processor meanwhile.
	struct timespec cpu[2];
	double began = now();
	EQ(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu[0]), 0);
	EQ(epoll_wait(ep, &ev, 1, 300), 0);
	EQ(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu[1]), 0);
	double used = cpu[1].tv_sec - cpu[0].tv_sec + (cpu[1].tv_nsec - cpu[0].tv_nsec) / 1e9;
	CHECK(used < (now() - began) / 4);
	tell(mine);
	served(l, ep);
	reap(client);
	kill(sharer, SIGKILL);
	reap_killed(sharer);
	return t_ok("ctl_sharer_leaves");
}
