// One thread connects to its own listener, sends 100 KB, and only then accepts and reads; it also does so with several
// connections at once, and with one that is closed before accept.
#include "t.h"
enum { N = 100000 };
static unsigned char a[N], b[N];
int main(void)
{
	t_init();
	int port, l = listen_on(&port), c[4];
	for (int i = 0; i < 4; i++) {
		c[i] = connect_to(port);
		expect_shm(c[i]);
		pat_fill(a, N, 0, i);
		EQ(send(c[i], a, N, 0), N);
	}
	for (int i = 0; i < 4; i++) {
		int s = accept(l, NULL, NULL);
		recv_all(s, b, N);
		pat_check(b, N, 0, i); // in the order of the connects
		send_all(s, b, 1000);
		recv_all(c[i], a, 1000);
		pat_check(a, 1000, 0, i);
		close(s);
		EQ(recv(c[i], a, 1, 0), 0);
		close(c[i]);
	}
	// the client is gone before accept: the connection is accepted, with its data and its end
	c[0] = connect_to(port);
	send_all(c[0], "hello", 5);
	close(c[0]);
	int s = accept(l, NULL, NULL);
	CHECK(s >= 0);
	recv_all(s, b, 5);
	EQ(recv(s, b, 1, 0), 0);
	close(s);
	// gone with a reset before accept: accepted all the same, then the error
	c[0] = connect_to(port);
	send_all(c[0], "hello", 5);
	CHECK(ready(l, POLLIN, 1000));
	abortive(c[0]);
	close(c[0]);
	s = accept(l, NULL, NULL);
	CHECK(s >= 0);
	CHECK(ready(s, 0, 1000) & POLLHUP);
	recv_all(s, b, 5);
	FAILS(recv(s, b, 1, 0), ECONNRESET);
	close(s);
	// non-blocking both ways, one thread, 5 MB
	int d[2];
	pair(d);
	nonblock(d[0]);
	nonblock(d[1]);
	uint64_t tx = 0, rx = 0;
	while (rx < 5000000) {
		size_t n = 5000000 - tx < N ? 5000000 - tx : N;
		pat_fill(a, n, tx, 9);
		ssize_t w = n ? send(d[0], a, n, 0) : 0;
		if (w > 0)
			tx += w;
		ssize_t r = recv(d[1], b, N, 0);
		if (r > 0) {
			pat_check(b, r, rx, 9);
			rx += r;
		} else
			CHECK(r < 0 && errno == EAGAIN);
	}
	return t_ok("self_connect");
}
