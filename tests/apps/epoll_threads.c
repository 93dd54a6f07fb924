// Several threads sleep in one epoll instance: while one is busy with its event, the others get the other events.
#include "t.h"
#include <stdatomic.h>
enum { T = 4, ROUNDS = 200 };
static int ep, fd[T][2], go[2];
static atomic_int busy, armed;
static void *work(void *x)
{
	(void)x;
	for (;;) {
		struct epoll_event e;
		char c;
		EQ(epoll_wait(ep, &e, 1, -1), 1);
		if (e.data.u32 == T)
			return NULL;
		recv_all(fd[e.data.u32][1], &c, 1);
		// No thread continues before each of them has got one.
		busy++;
		EQ(read(go[0], &c, 1), 1);
		struct epoll_event m = { .events = EPOLLIN | EPOLLONESHOT | (e.data.u32 % 2 ? EPOLLET : 0), .data.u32 = e.data.u32 };
		EQ(epoll_ctl(ep, EPOLL_CTL_MOD, fd[e.data.u32][1], &m), 0);
		armed++;
	}
}
int main(void)
{
	t_init();
	pthread_t t[T];
	int stop[2], port, l = listen_on(&port);
	EQ(pipe(go), 0);
	EQ(pipe(stop), 0);
	ep = epoll_create1(0);
	for (int i = 0; i < T; i++) {
		fd[i][0] = connect_to(port);
		fd[i][1] = accept(l, NULL, NULL);
		if (!i)
			expect_shm(fd[i][1]);
		struct epoll_event e = { .events = EPOLLIN | EPOLLONESHOT | (i % 2 ? EPOLLET : 0), .data.u32 = i };
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd[i][1], &e), 0);
		EQ(pthread_create(&t[i], NULL, work, NULL), 0);
	}
	for (int n = 0; n < ROUNDS; n++) {
		for (int i = 0; i < T; i++) {
			send_all(fd[i][0], "x", 1);
			for (double end = now() + (n % 8 ? 0 : 0.002); now() < end;)
				sched_yield();
		}
		while (busy < T)
			usleep(50);
		busy = 0;
		EQ(write(go[1], "gogo", T), T);
		while (armed < T)
			usleep(50);
		armed = 0;
	}
	struct epoll_event e = { .events = EPOLLIN, .data.u32 = T };
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, stop[0], &e), 0);
	EQ(write(stop[1], "x", 1), 1);
	for (int i = 0; i < T; i++)
		pthread_join(t[i], NULL);
	return t_ok("epoll_threads");
}
