// A connection whose SO_RCVLOWAT is more than it can hold is readable when it is full.
#include "t.h"
static int p[2];
static void set(int n) { EQ(setsockopt(p[0], SOL_SOCKET, SO_RCVLOWAT, &n, sizeof n), 0); }
static char b[1 << 20];
static void *much(void *x)
{
	(void)x;
	send_all(p[1], b, sizeof b);
	shutdown(p[1], SHUT_WR);
	return NULL;
}
int main(void)
{
	t_init();
	pthread_t t;
	pair(p);
	set(1000);
	send_all(p[1], b, 100);
	EQ(recv(p[0], b, 100, 0), 100);
	EQ(ready(p[0], POLLIN, 0), 0);
	send_all(p[1], b, 999);
	EQ(ready(p[0], POLLIN, 0), 0);
	send_all(p[1], b, 1);
	EQ(ready(p[0], POLLIN, 5000), POLLIN);
	recv_all(p[0], b, 1000);
	set(300000);
	EQ(pthread_create(&t, NULL, much, NULL), 0);
	size_t got = 0;
	for (;;) {
		EQ(ready(p[0], POLLIN, 5000), POLLIN);
		static char c[1 << 20];
		ssize_t n = recv(p[0], c, sizeof c, MSG_DONTWAIT);
		CHECK(n >= 0);
		if (!n)
			break;
		got += n;
	}
	EQ(got, sizeof b);
	EQ(pthread_join(t, NULL), 0);
	return t_ok("rcvlowat_full");
}
