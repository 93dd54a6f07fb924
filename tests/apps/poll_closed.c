// Another thread closes a number during poll(2) or select(2). The close wakes nobody; the call finds the number closed when
// something else wakes it or its time is over (POLLNVAL; for select(2) it is ready).
#include "t.h"
static int fd, wakes;
static void *closer(void *arg)
{
	int peer = *(int *)arg;
	let_it_block(getpid(), getpid());
	usleep(20000);
	close(fd);
	usleep(50000);
	if (wakes)
		send_all(peer, "x", 1);
	return arg;
}
static void run(int by_select)
{
	int p[2];
	pair(p);
	fd = p[1];
	pthread_t t;
	EQ(pthread_create(&t, NULL, closer, &p[0]), 0);
	double from = now();
	if (by_select) {
		fd_set r, w;
		FD_ZERO(&r);
		FD_ZERO(&w);
		FD_SET(fd, &r);
		EQ(select(fd + 1, &r, &w, NULL, &(struct timeval){ 0, 300000 }), 1);
		CHECK(FD_ISSET(fd, &r));
	} else {
		struct pollfd q[2] = { { fd, POLLIN, 0 }, { -1, 0, 0 } };
		EQ(poll(q, 2, 300), 1);
		EQ(q[0].revents, POLLNVAL);
	}
	double took = now() - from;
	CHECK(took > 0.06 && (wakes || took > 0.29));
	pthread_join(t, NULL);
	close(p[0]);
}
int main(void)
{
	t_init();
	for (int by_select = 0; by_select < 2; by_select++)
		for (wakes = 0; wakes < 2; wakes++)
			run(by_select);
	return t_ok("poll_closed");
}
