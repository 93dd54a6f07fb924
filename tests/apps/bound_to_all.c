// A socket that is bound to a port on all addresses and connected has the port on the connection's address alone: on the
// others it is free, and on that one it is taken.
#include "t.h"
#define V6(a) ((struct sockaddr_in6){ .sin6_family = AF_INET6, .sin6_addr = a, .sin6_port = htons(port) })
#define V4(a) ((struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(a), .sin_port = htons(port) })
static int bind_new(int family, const void *a, socklen_t n)
{
	int fd = socket(family, SOCK_STREAM, 0), r = bind(fd, a, n), e = errno;
	close(fd);
	errno = e;
	return r;
}
#define BINDS(family, a) bind_new(family, &(a), sizeof(a))
// A client of `family` bound to all addresses and a port, connected to `dst`.
static int client(int family, const void *any, socklen_t n, const void *dst, socklen_t dn, int watched)
{
	int fd = socket(family, SOCK_STREAM, 0), ep = epoll_create1(0);
	struct epoll_event ev = { EPOLLIN, { .fd = fd } };
	EQ(bind(fd, any, n), 0);
	if (watched)
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev), 0);
	EQ(connect(fd, dst, dn), 0);
	return fd;
}
static int server(int family, const void *a, socklen_t n, void *at)
{
	int l = socket(family, SOCK_STREAM, 0);
	EQ(bind(l, a, n) || listen(l, 9) || getsockname(l, at, &n), 0);
	return l;
}
static void talk(int l, int c)
{
	char b[2];
	int s = accept(l, NULL, NULL);
	CHECK(s >= 0);
	send_all(c, "c", 1), send_all(s, "s", 1);
	recv_all(c, b, 1), recv_all(s, b + 1, 1);
	CHECK(b[0] == 's' && b[1] == 'c');
	expect_shm(c);
	close(s), close(c);
}
static void on_v6(int mapped, int watched)
{
	int port = 0, on, off = 0;
	socklen_t n = sizeof on;
	struct sockaddr_in6 any = V6(in6addr_any), at, me;
	int l = server(AF_INET6, &any, sizeof any, &at);
	inet_pton(AF_INET6, mapped ? "::ffff:127.0.0.1" : "::1", &at.sin6_addr);
	int c = client(AF_INET6, &any, sizeof any, &at, sizeof at, watched);
	n = sizeof me;
	EQ(getsockname(c, (void *)&me, &n), 0);
	CHECK(!memcmp(&me.sin6_addr, &at.sin6_addr, sizeof me.sin6_addr));
	port = ntohs(me.sin6_port);
	struct sockaddr_in v4 = V4(INADDR_LOOPBACK), other = V4(INADDR_LOOPBACK + 1);
	struct sockaddr_in6 v6 = V6(in6addr_loopback);
	EQ(BINDS(AF_INET, v4), mapped ? -1 : 0);
	EQ(BINDS(AF_INET, other), 0);
	EQ(BINDS(AF_INET6, v6), mapped ? 0 : -1);
	EQ(errno, EADDRINUSE);
	n = sizeof on;
	EQ(getsockopt(c, SOL_SOCKET, SO_REUSEADDR, &on, &n), 0);
	EQ(on, 0);
	n = sizeof on;
	EQ(getsockopt(c, IPPROTO_IPV6, IPV6_V6ONLY, &on, &n), 0);
	EQ(on, off);
	talk(l, c);
	close(l);
}
static void on_v4(int watched)
{
	int port = 0;
	struct sockaddr_in any = V4(INADDR_ANY), lo = V4(INADDR_LOOPBACK), at;
	int l = server(AF_INET, &lo, sizeof lo, &at);
	int c = client(AF_INET, &any, sizeof any, &at, sizeof at, watched), twin = dup(c);
	port = port_of(c);
	struct sockaddr_in same = V4(INADDR_LOOPBACK), other = V4(INADDR_LOOPBACK + 1);
	EQ(BINDS(AF_INET, other), 0);
	EQ(BINDS(AF_INET, same), -1);
	EQ(errno, EADDRINUSE);
	EQ(port_of(twin), port);
	close(twin);
	talk(l, c);
	close(l);
}
int main(void)
{
	t_init();
	for (int watched = 0; watched < 2; watched++) {
		on_v4(watched);
		on_v6(0, watched);
		on_v6(1, watched);
	}
	return t_ok("bound_to_all");
}
