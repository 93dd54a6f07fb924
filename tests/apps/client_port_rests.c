// A connection does not get the local port of the one that was closed just before it, as with TCP: programs tell
// connections apart by it.
#include "t.h"
static int port_of_one(int l, int port)
{
	struct sockaddr_in a = addr4(port), m;
	socklen_t n = sizeof m;
	int c = socket(AF_INET, SOCK_STREAM, 0);
	char b;
	EQ(connect(c, (void *)&a, sizeof a), 0);
	int s = accept(l, NULL, NULL);
	expect_shm(c);
	EQ(getsockname(c, (void *)&m, &n), 0);
	EQ(close(c), 0);
	EQ(read(s, &b, 1), 0);
	EQ(close(s), 0);
	return ntohs(m.sin_port);
}
int main(void)
{
	t_init();
	int port, l = listen_on(&port), before = 0;
	for (int i = 0; i < 50; i++) {
		int now = port_of_one(l, port);
		CHECK(now != before);
		before = now;
	}
	return t_ok("client_port_rests");
}
