// An epoll instance inside another one, inside poll and inside select is reported correctly, level-triggered and
// edge-triggered.
#include "t.h"
static int p[2];
static void *later(void *x)
{
	let_it_block(getpid(), (int)(long)x);
	send_all(p[1], "x", 1);
	return NULL;
}
int main(void)
{
	t_init();
	int in = epoll_create1(0), out = epoll_create1(0), top = epoll_create1(0);
	pair(p);
	struct epoll_event e = { EPOLLIN, { .u32 = 1 } }, ev[4];
	EQ(epoll_ctl(in, EPOLL_CTL_ADD, p[0], &e), 0);
	e.data.u32 = 2;
	EQ(epoll_ctl(out, EPOLL_CTL_ADD, in, &e), 0);
	e.data.u32 = 3;
	EQ(epoll_ctl(top, EPOLL_CTL_ADD, out, &e), 0);
	FAILS(epoll_ctl(in, EPOLL_CTL_ADD, out, &e), ELOOP);
	EQ(epoll_wait(top, ev, 4, 0), 0);
	EQ(ready(in, POLLIN, 0), 0);
	for (int i = 0; i < 5; i++) { // blocking in each kind of wait on the outer levels
		char c;
		fd_set r;
		pthread_t t;
		pthread_create(&t, NULL, later, (void *)(long)getpid());
		switch (i) {
		case 0: EQ(epoll_wait(out, ev, 4, 5000), 1); EQ(ev[0].data.u32, 2); EQ(ev[0].events, EPOLLIN); break;
		case 1: EQ(epoll_wait(top, ev, 4, 5000), 1); EQ(ev[0].data.u32, 3); EQ(ev[0].events, EPOLLIN); break;
		case 2: EQ(ready(out, POLLIN, 5000), POLLIN); break;
		case 3: EQ(ready(in, POLLIN, 5000), POLLIN); break;
		default:
			FD_ZERO(&r);
			FD_SET(in, &r);
			EQ(select(in + 1, &r, NULL, NULL, &(struct timeval){ 5, 0 }), 1);
		}
		EQ(epoll_wait(in, ev, 4, 0), 1);
		EQ(ev[0].data.u32, 1);
		EQ(epoll_wait(out, ev, 4, 0), 1);
		EQ(recv(p[0], &c, 1, 0), 1);
		EQ(epoll_wait(out, ev, 4, 0), 0);
		EQ(epoll_wait(top, ev, 4, 0), 0);
		pthread_join(t, NULL);
	}
	// the outer edge-triggered: one report per news inside
	e = (struct epoll_event){ EPOLLIN | EPOLLET, { .u32 = 2 } };
	EQ(epoll_ctl(out, EPOLL_CTL_MOD, in, &e), 0);
	send_all(p[1], "y", 1);
	EQ(epoll_wait(out, ev, 4, 1000), 1);
	EQ(epoll_wait(out, ev, 4, 0), 0);
	send_all(p[1], "z", 1);
	EQ(epoll_wait(out, ev, 4, 1000), 1);
	EQ(epoll_ctl(in, EPOLL_CTL_DEL, p[0], NULL), 0);
	EQ(epoll_wait(in, ev, 4, 0), 0);
	EQ(ready(in, POLLIN, 0), 0);
	return t_ok("epoll_nested");
}
