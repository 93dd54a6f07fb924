// bindresvport(3), which binds inside libc, gives the socket a reserved port that the server sees and no other socket
// has.
#include "t.h"
int bindresvport(int, struct sockaddr_in *);

static void one(int fresh)
{
	int port, l = listen_on(&port), s = socket(AF_INET, SOCK_STREAM, 0);
	if (bindresvport(s, NULL)) {
		if (errno == EACCES || errno == EPERM)
			t_skip("bindresvport", "not root");
		die("bindresvport");
	}
	int own = port_of(s), other = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(own > 0 && own < IPPORT_RESERVED);
	EQ(port_of(other), 0);
	struct sockaddr_in a = addr4(port), from;
	socklen_t n = sizeof from;
	if (fresh) {
		close(s);
		s = other;
		own = 0;
	}
	EQ(connect(s, (struct sockaddr *)&a, sizeof a), 0);
	int c = accept(l, (struct sockaddr *)&from, &n);
	CHECK(c >= 0);
	if (fresh)
		CHECK(ntohs(from.sin_port) >= IPPORT_RESERVED);
	else {
		EQ(ntohs(from.sin_port), own);
		FAILS(bindresvport(s, NULL), EINVAL);
		close(other);
	}
	send_all(c, "!", 1);
	char b;
	recv_all(s, &b, 1);
	close(s), close(c), close(l);
}
int main(void)
{
	t_init();
	for (int i = 0; i < 6; i++)
		one(i % 2);
	return t_ok("bindresvport");
}
