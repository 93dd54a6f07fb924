// connect(2) with AF_UNSPEC leaves a socket bound to the address that the program has named, and to the port.
#include "t.h"
static int l, port;
static struct sockaddr_in own(int fd)
{
	struct sockaddr_in a;
	socklen_t n = sizeof a;
	EQ(getsockname(fd, (struct sockaddr *)&a, &n), 0);
	return a;
}
static int free_port(void)
{
	struct sockaddr_in a = addr4(0);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	EQ(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
	int p = port_of(fd);
	close(fd);
	return p;
}
static void one(int has_address, int has_port)
{
	struct sockaddr_in a = addr4(has_port ? free_port() : 0), at = addr4(port), none = { .sin_family = AF_UNSPEC };
	int s = socket(AF_INET, SOCK_STREAM, 0);
	in_addr_t named = has_address ? a.sin_addr.s_addr : htonl(INADDR_ANY);
	a.sin_addr.s_addr = named;
	if (has_address || has_port)
		EQ(bind(s, (struct sockaddr *)&a, sizeof a), 0);
	for (int i = 0; i < 3; i++) {
		int e = connect(s, (struct sockaddr *)&at, sizeof at);
		if (e && i > 0 && errno == ECONNRESET) // the reset of the connection before has not been reported yet
			e = connect(s, (struct sockaddr *)&at, sizeof at);
		EQ(e, 0);
		int c = accept(l, NULL, NULL);
		CHECK(c >= 0);
		if (has_port)
			EQ(own(s).sin_port, a.sin_port);
		send_all(s, "x", 1);
		recv_all(c, &(char){ 0 }, 1);
		EQ(connect(s, (struct sockaddr *)&none, sizeof none), 0);
		EQ(own(s).sin_addr.s_addr, named);
		close(c);
		if (!has_port)
			continue;
		EQ(own(s).sin_port, a.sin_port);
		struct sockaddr_in b = addr4(ntohs(a.sin_port));
		c = socket(AF_INET, SOCK_STREAM, 0);
		FAILS(bind(c, (struct sockaddr *)&b, sizeof b), EADDRINUSE);
		close(c);
	}
	close(s);
}
int main(void)
{
	t_init();
	l = listen_on(&port);
	for (int i = 0; i < 4; i++)
		one(i & 1, i & 2);
	return t_ok("unspec_bound");
}
