// bind(2) treats the local port of a connection as with TCP: with SO_REUSEADDR on both sockets another socket can be
// bound to it beside the connection, without it not, and if the server closed first the port is free with the client's
// close.
#include "t.h"
static int with_reuse(int on)
{
	int s = socket(AF_INET, SOCK_STREAM, 0);
	EQ(setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
	return s;
}
static int shared, again; // how many times it could be bound
static void once(int l, int port)
{
	struct sockaddr_in a = addr4(port), m;
	socklen_t n = sizeof m;
	int c = with_reuse(1);
	EQ(connect(c, (void *)&a, sizeof a), 0);
	int s = accept(l, NULL, NULL), d = with_reuse(1), e = with_reuse(0);
	char b;
	expect_shm(c);
	EQ(getsockname(c, (void *)&m, &n), 0);
	// Another program may have a connection from the same port, to elsewhere, that forbids it.
	shared += !bind(d, (void *)&m, n);
	FAILS(bind(e, (void *)&m, n), EADDRINUSE);
	close(d);
	close(s);
	EQ(read(c, &b, 1), 0);
	close(c);
	// The kernel may be a moment behind.
	int r;
	for (int i = 0; (r = bind(e, (void *)&m, n)) && i < 200; i++)
		usleep(1000);
	if (!r) {
		EQ(connect(e, (void *)&a, sizeof a), 0);
		close(accept(l, NULL, NULL));
		again++;
	}
	close(e);
}
int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	for (int i = 0; i < 200 && !(shared && again); i++)
		once(l, port);
	CHECK(shared && again);
	return t_ok("client_port");
}
