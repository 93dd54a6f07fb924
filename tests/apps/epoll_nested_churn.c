// Threads wait in an outer epoll instance and get its events while other threads register, unregister and close the
// instances inside it.
#include "t.h"
static int out, quit, p[4][2];
static void *waiter(void *x)
{
	struct epoll_event ev[8];
	(void)x;
	while (!__atomic_load_n(&quit, __ATOMIC_RELAXED))
		if (epoll_wait(out, ev, 8, 1) < 0)
			die("epoll_wait");
	return NULL;
}
static void *churn(void *x)
{
	int k = (int)(long)x;
	struct epoll_event e = { EPOLLIN, { .u32 = 7 } }, ev[4];
	char c;
	for (int i = 0; !__atomic_load_n(&quit, __ATOMIC_RELAXED); i++) {
		int in[3];
		for (int j = 0; j < 3; j++) {
			in[j] = epoll_create1(EPOLL_CLOEXEC);
			CHECK(in[j] >= 0);
			EQ(epoll_ctl(in[j], EPOLL_CTL_ADD, p[k][0], &e), 0);
			EQ(epoll_ctl(out, EPOLL_CTL_ADD, in[j], &e), 0);
		}
		send_all(p[k][1], "x", 1);
		EQ(epoll_wait(in[i % 3], ev, 4, 5000), 1);
		EQ(ev[0].data.u32, 7);
		EQ(recv(p[k][0], &c, 1, 0), 1);
		if (i & 1)
			EQ(epoll_ctl(out, EPOLL_CTL_DEL, in[1], NULL), 0);
		for (int j = 0; j < 3; j++)
			close(in[j]);
	}
	return NULL;
}
int main(void)
{
	t_init();
	out = epoll_create1(0);
	pthread_t t[6];
	for (int i = 0; i < 4; i++)
		pair(p[i]);
	for (long i = 0; i < 2; i++)
		pthread_create(&t[i], NULL, waiter, NULL);
	for (long i = 0; i < 4; i++)
		pthread_create(&t[2 + i], NULL, churn, (void *)i);
	sleep(3);
	__atomic_store_n(&quit, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < 6; i++)
		pthread_join(t[i], NULL);
	return t_ok("epoll_nested_churn");
}
