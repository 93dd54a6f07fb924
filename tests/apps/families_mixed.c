// An IPv6 socket reaches IPv4 addresses in their mapped form, unless IPV6_V6ONLY says otherwise or its own address is an IPv6
// one: the kernel has an error for each mixture. A connection to a mapped address has the MTU of an IPv4 path.
#include "t.h"
static int listener;
static struct sockaddr_in6 address(const char *text, int port)
{
	struct sockaddr_in6 a = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	EQ(inet_pton(AF_INET6, text, &a.sin6_addr), 1);
	return a;
}
static int from(const char *text, int only)
{
	int fd = socket(AF_INET6, SOCK_STREAM, 0);
	CHECK(fd >= 0);
	if (only >= 0)
		EQ(setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only), 0);
	if (text) {
		struct sockaddr_in6 a = address(text, 0);
		EQ(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
	}
	return fd;
}
static int to(int fd, const char *text)
{
	struct sockaddr_in6 a = address(text, port_of(listener));
	return connect(fd, (struct sockaddr *)&a, sizeof a);
}
static void refused(const char *own, int only, const char *peer, int error)
{
	int fd = from(own, only);
	FAILS(to(fd, peer), error);
	close(fd);
}
static void made(const char *own, int only, const char *peer)
{
	int fd = from(own, only), s, mtu, other;
	socklen_t n = sizeof mtu;
	EQ(to(fd, peer), 0);
	s = accept(listener, NULL, NULL);
	CHECK(s >= 0);
	expect_shm(fd);
	EQ(getsockopt(fd, IPPROTO_IPV6, IPV6_MTU, &mtu, &n), 0);
	EQ(getsockopt(fd, IPPROTO_IP, IP_MTU, &other, &n), 0);
	if (strchr(peer, '.'))
		EQ(mtu, other);
	close(s), close(fd);
}
int main(void)
{
	t_init();
	struct sockaddr_in6 any = { .sin6_family = AF_INET6 };
	int off = 0;
	listener = socket(AF_INET6, SOCK_STREAM, 0);
	if (listener < 0 || setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off)
	    || bind(listener, (struct sockaddr *)&any, sizeof any) || listen(listener, 16))
		t_skip("families_mixed", "no IPv6");
	to_be_found(listener);
	made(NULL, 0, "::ffff:127.0.0.1");
	made("::", 0, "::ffff:127.0.0.1");
	made("::ffff:127.0.0.1", 0, "::ffff:127.0.0.1");
	made("::1", -1, "::1");
	made("::", 1, "::1");
	refused(NULL, 1, "::ffff:127.0.0.1", ENETUNREACH);
	refused("::", 1, "::ffff:127.0.0.1", ENETUNREACH);
	refused("::1", -1, "::ffff:127.0.0.1", ENETUNREACH);
	refused("::ffff:127.0.0.1", 0, "::1", EAFNOSUPPORT);
	return t_ok("families_mixed");
}
