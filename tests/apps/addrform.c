// IPV6_ADDRFORM turns an IPv6 socket that is connected to an IPv4 address into an IPv4 socket, and no byte that is
// under way is lost.
#include "t.h"
int main(void)
{
	t_init();
	int port, l = listen_on(&port), v = AF_INET, domain = 0;
	struct sockaddr_in a = addr4(port), name;
	struct sockaddr_in6 m = { .sin6_family = AF_INET6, .sin6_port = a.sin_port };
	m.sin6_addr.s6_addr[10] = m.sin6_addr.s6_addr[11] = 0xff;
	memcpy(m.sin6_addr.s6_addr + 12, &a.sin_addr, 4);
	int c = socket(AF_INET6, SOCK_STREAM, 0);
	if (c < 0 && errno == EAFNOSUPPORT)
		t_skip("addrform", "no IPv6");
	FAILS(setsockopt(c, IPPROTO_IPV6, IPV6_ADDRFORM, &v, sizeof v), ENOTCONN);
	EQ(connect(c, (void *)&m, sizeof m), 0);
	int s = accept(l, NULL, NULL);
	send_all(s, "abc", 3);
	v = AF_UNIX;
	FAILS(setsockopt(c, IPPROTO_IPV6, IPV6_ADDRFORM, &v, sizeof v), EINVAL);
	v = AF_INET;
	EQ(setsockopt(c, IPPROTO_IPV6, IPV6_ADDRFORM, &v, sizeof v), 0);
	socklen_t n = sizeof name;
	EQ(getpeername(c, (void *)&name, &n), 0);
	EQ(n, sizeof name);
	EQ(name.sin_family, AF_INET);
	EQ(name.sin_port, a.sin_port);
	n = sizeof domain;
	EQ(getsockopt(c, SOL_SOCKET, SO_DOMAIN, &domain, &n), 0);
	EQ(domain, AF_INET);
	char b[6];
	send_all(s, "def", 3);
	recv_all(c, b, 6);
	EQ(memcmp(b, "abcdef", 6), 0);
	send_all(c, "x", 1);
	recv_all(s, b, 1);
	return t_ok("addrform");
}
