// Small SO_SNDBUF and SO_RCVBUF limit the bytes under way, so that a writer whose peer does not read must wait early.
#include "t.h"
enum { LITTLE = 8192, ENOUGH = 120000, TOTAL = 400000 };
static int out;
static void *writer(void *x)
{
	(void)x;
	static unsigned char b[TOTAL];
	pat_fill(b, TOTAL, 0, 7);
	send_all(out, b, TOTAL);
	return NULL;
}
int main(void)
{
	t_init();
	for (int late = 0; late < 2; late++) {
		int port, little = LITTLE, l = listen_on(&port), v;
		socklen_t len = sizeof v;
		if (!late)
			EQ(setsockopt(l, SOL_SOCKET, SO_RCVBUF, &little, sizeof little), 0);
		int c = socket(AF_INET, SOCK_STREAM, 0);
		struct sockaddr_in a = addr4(port);
		if (!late)
			EQ(setsockopt(c, SOL_SOCKET, SO_SNDBUF, &little, sizeof little), 0);
		EQ(connect(c, (struct sockaddr *)&a, sizeof a), 0);
		int s = accept(l, NULL, NULL);
		CHECK(s >= 0);
		if (late) {
			EQ(setsockopt(s, SOL_SOCKET, SO_RCVBUF, &little, sizeof little), 0);
			EQ(setsockopt(c, SOL_SOCKET, SO_SNDBUF, &little, sizeof little), 0);
		}
		EQ(getsockopt(c, SOL_SOCKET, SO_SNDBUF, &v, &len), 0);
		EQ(v, 2 * LITTLE);
		EQ(getsockopt(s, SOL_SOCKET, SO_RCVBUF, &v, &len), 0);
		EQ(v, 2 * LITTLE);
		size_t n = send_until_full(c, 3000);
		CHECK(n >= LITTLE / 2 && n < ENOUGH);
		EQ(ready(c, POLLOUT, 0), 0);
		drain_bytes(s, n);
		EQ(ready(c, POLLOUT, -1), POLLOUT);
		out = c;
		pthread_t t;
		EQ(pthread_create(&t, NULL, writer, NULL), 0);
		static unsigned char b[TOTAL];
		recv_all(s, b, TOTAL);
		pat_check(b, TOTAL, 0, 7);
		pthread_join(t, NULL);
		close(c);
		close(s);
		close(l);
	}
	return t_ok("back_pressure");
}
