// A thread sleeps in an epoll instance to which another thread adds the first connection (as MariaDB's thread pool
// does): the thread gets that connection's events, with the connection's own data.
#include "t.h"
static int ep, wake[2];
static struct epoll_event got;
static volatile pid_t tid;
static void *sleeper(void *way)
{
	tid = gettid();
	if (way == (void *)2)
		EQ(epoll_pwait(ep, &got, 1, -1, NULL), 1);
	else
		EQ(epoll_wait(ep, &got, 1, way ? 20000 : -1), 1);
	return NULL;
}
int main(void)
{
	t_init();
	// An empty instance, with and without a time-out, and one that holds a pipe; data before the ADD and after.
	for (int n = 0; n < 12; n++) {
		int p[2];
		pthread_t t;
		pair(p);
		if (!n)
			expect_shm(p[0]);
		ep = epoll_create1(0);
		EQ(pipe(wake), 0);
		struct epoll_event ev = { .events = EPOLLIN, .data.u64 = 7 };
		if (n % 2)
			EQ(epoll_ctl(ep, EPOLL_CTL_ADD, wake[0], &ev), 0);
		tid = 0;
		EQ(pthread_create(&t, NULL, sleeper, (void *)(long)(n % 3)), 0);
		while (!tid)
			sched_yield();
		let_it_block(getpid(), tid);
		if (n % 4 < 2)
			send_all(p[0], "x", 1);
		ev = (struct epoll_event){ .events = EPOLLIN | (n > 5 ? EPOLLET | EPOLLONESHOT : 0), .data.u64 = 1000 + n };
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, p[1], &ev), 0);
		if (n % 4 >= 2)
			send_all(p[0], "x", 1);
		EQ(pthread_join(t, NULL), 0);
		EQ(got.data.u64, 1000 + n);
		EQ(got.events, EPOLLIN);
		char c;
		recv_all(p[1], &c, 1);
		close(p[0]);
		close(p[1]);
		close(ep);
		close(wake[0]);
		close(wake[1]);
	}
	// A thread that sleeps in an instance without connections can be cancelled.
	ep = epoll_create1(0);
	pthread_t t;
	tid = 0;
	EQ(pthread_create(&t, NULL, sleeper, NULL), 0);
	while (!tid)
		sched_yield();
	let_it_block(getpid(), tid);
	EQ(pthread_cancel(t), 0);
	void *end;
	EQ(pthread_join(t, &end), 0);
	CHECK(end == PTHREAD_CANCELED);
	return t_ok("epoll_first");
}
