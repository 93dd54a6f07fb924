// The port of a listener that is closed stays taken for sockets without SO_REUSEADDR while connections live that the
// listener accepted; a server that is started again with that option gets the port (socket(7)).
#include "t.h"
static int bound(struct sockaddr *a, socklen_t n, int reuse)
{
	int s = socket(a->sa_family, SOCK_STREAM, 0);
	EQ(setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse), 0);
	if (bind(s, a, n)) {
		close(s);
		return -1;
	}
	return s;
}
static void round_of(int family, int chosen)
{
	struct sockaddr_in a4 = addr4(0);
	struct sockaddr_in6 a6 = { .sin6_family = AF_INET6, .sin6_addr = host6() };
	struct sockaddr *a = family == AF_INET ? (void *)&a4 : (void *)&a6;
	socklen_t n = family == AF_INET ? sizeof a4 : sizeof a6;
	int l = bound(a, n, 1), c[2], s[2];
	EQ(getsockname(l, a, &n), 0);
	if (chosen) { // by the program, which is another thing to the kernel than by itself
		close(l);
		l = bound(a, n, 1);
		if (l < 0)
			return;
	}
	EQ(listen(l, 8), 0);
	for (int i = 0; i < 2; i++) {
		c[i] = socket(family, SOCK_STREAM, 0);
		EQ(connect(c[i], a, n), 0);
		s[i] = accept(l, NULL, NULL);
		CHECK(s[i] >= 0);
	}
	close(l);
	for (int i = 0; i < 2; i++) {
		FAILS(bound(a, n, 0), EADDRINUSE);
		l = bound(a, n, 1);
		CHECK(l >= 0);
		EQ(listen(l, 8), 0); // anew
		int again = socket(family, SOCK_STREAM, 0);
		EQ(connect(again, a, n), 0);
		close(accept(l, NULL, NULL));
		close(again);
		close(l);
		char b;
		EQ(write(c[i], "x", 1), 1);
		EQ(read(s[i], &b, 1), 1);
		abortive(s[i]); // no TIME_WAIT, here nor there
		close(s[i]);
		EQ(ready(c[i], POLLIN, 20000) & POLLIN, POLLIN);
		close(c[i]);
	}
}
int main(void)
{
	t_init();
	for (int chosen = 0; chosen < 2; chosen++) {
		round_of(AF_INET, chosen);
		round_of(AF_INET6, chosen);
	}
	return t_ok("port_of_closed_listener");
}
