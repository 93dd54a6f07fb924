// The end of a connection is no exceptional condition: select(2) does not return for a number that is in its third set alone, and
// goes on with the others.
#include "t.h"
static int third(int fd, int other, int ms)
{
	fd_set r, x;
	FD_ZERO(&r);
	FD_ZERO(&x);
	FD_SET(fd, &x);
	if (other >= 0)
		FD_SET(other, &r);
	int n = select(1 + (fd > other ? fd : other), &r, NULL, &x, &(struct timeval){ ms / 1000, ms % 1000 * 1000 });
	CHECK(!FD_ISSET(fd, &x));
	EQ(n, other >= 0 && FD_ISSET(other, &r));
	return n;
}
static void *writes(void *arg)
{
	usleep(30000);
	send_all(*(int *)arg, "x", 1);
	return NULL;
}
int main(void)
{
	t_init();
	int p[2], q[2];
	pthread_t t;
	fd_set all[3];
	double before = now();
	pair(p), pair(q);
	EQ(shutdown(p[0], SHUT_WR), 0);
	EQ(third(p[0], -1, 20), 0);
	close(p[1]);
	CHECK(ready(p[0], POLLIN, 10000) & POLLHUP);
	EQ(third(p[0], -1, 20), 0);
	EQ(third(p[0], q[1], 20), 0);
	EQ(third(p[0], q[1], 0), 0);
	CHECK(now() - before > 0.05);
	// Its time-out is that of the whole call, whatever is left to wait for.
	before = now();
	EQ(third(p[0], -1, 1000), 0);
	CHECK(now() - before > 0.9 && now() - before < 1.7);
	EQ(pthread_create(&t, NULL, writes, &q[0]), 0);
	EQ(third(p[0], q[1], 20000), 1);
	pthread_join(t, NULL);
	for (int i = 0; i < 3; i++) {
		FD_ZERO(&all[i]);
		FD_SET(p[0], &all[i]);
	}
	EQ(select(p[0] + 1, &all[0], &all[1], &all[2], NULL), 2);
	CHECK(FD_ISSET(p[0], &all[0]) && FD_ISSET(p[0], &all[1]) && !FD_ISSET(p[0], &all[2]));
	close(p[0]), close(q[0]), close(q[1]);
	return t_ok("select_third_set");
}
