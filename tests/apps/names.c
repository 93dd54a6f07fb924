// getsockname, getpeername and accept return addresses on which both sides agree: IPv4, IPv6, mapped ones, wildcard and
// dual-stack listeners, bound clients.
#include "t.h"
static void one(int lfam, int any, int cfam, int mapped, int bindport)
{
	struct sockaddr_in6 a = { .sin6_family = lfam }, c[4], s[3];
	struct sockaddr_in *a4 = (struct sockaddr_in *)&a;
	int l = socket(lfam, SOCK_STREAM, 0);
	if (lfam == AF_INET)
		a4->sin_addr.s_addr = htonl(any ? INADDR_ANY : INADDR_LOOPBACK);
	else if (!any)
		a.sin6_addr = in6addr_loopback;
	socklen_t al = lfam == AF_INET ? sizeof *a4 : sizeof a, n;
	EQ(bind(l, (struct sockaddr *)&a, al), 0);
	EQ(listen(l, 5), 0);
	int port = port_of(l);
	struct sockaddr_in6 d = { .sin6_family = cfam, .sin6_port = htons(port) };
	struct sockaddr_in *d4 = (struct sockaddr_in *)&d;
	if (cfam == AF_INET)
		d4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	else if (mapped)
		EQ(inet_pton(AF_INET6, "::ffff:127.0.0.1", &d.sin6_addr), 1);
	else
		d.sin6_addr = in6addr_loopback;
	socklen_t dl = cfam == AF_INET ? sizeof *d4 : sizeof d;
	int fd = socket(cfam, SOCK_STREAM, 0);
	if (bindport) { // the client chooses its address: another of 127/8
		struct sockaddr_in b = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000007) };
		EQ(bind(fd, (struct sockaddr *)&b, sizeof b), 0);
		bindport = port_of(fd);
		CHECK(bindport > 0);
	}
	EQ(connect(fd, (struct sockaddr *)&d, dl), 0);
	expect_shm(fd);
	n = sizeof s[0];
	int x = accept(l, (struct sockaddr *)&s[0], &n);
	CHECK(x >= 0);
	EQ(n, al);
	for (int i = 0; i < 2; i++) {
		n = sizeof c[i];
		EQ((i ? getpeername : getsockname)(fd, (struct sockaddr *)&c[i], &n), 0);
		EQ(n, dl);
		EQ(c[i].sin6_family, cfam);
		n = sizeof s[1 + i];
		EQ((i ? getpeername : getsockname)(x, (struct sockaddr *)&s[1 + i], &n), 0);
		EQ(n, al);
		EQ(s[1 + i].sin6_family, lfam);
	}
	CHECK(!memcmp(&s[0], &s[2], al)); // accept's address is getpeername
	EQ(c[0].sin6_port, s[2].sin6_port);
	EQ(c[1].sin6_port, s[1].sin6_port);
	EQ(ntohs(c[1].sin6_port), port);
	CHECK(c[0].sin6_port != c[1].sin6_port && c[0].sin6_port != 0);
	if (bindport)
		EQ(ntohs(c[0].sin6_port), bindport);
	char got[2][64], want[64];
	for (int i = 0; i < 2; i++) { // the address as text, seen by each side
		struct sockaddr_in6 *v[2] = { i ? &c[0] : &s[2], i ? &s[1] : &c[1] };
		for (int k = 0; k < 2; k++)
			inet_ntop(v[k]->sin6_family, v[k]->sin6_family == AF_INET ? (void *)&((struct sockaddr_in *)v[k])->sin_addr : (void *)&v[k]->sin6_addr, got[k], 64);
		int v4 = cfam == AF_INET || mapped;
		for (int k = 0; k < 2; k++) {
			int client = k == 0; // v[0] names the client's address, v[1] the server's
			snprintf(want, sizeof want, "%s%s", v4 && v[k]->sin6_family == AF_INET6 ? "::ffff:" : "",
				 !v4 ? "::1" : client && bindport ? "127.0.0.7" : "127.0.0.1");
			if (strcmp(got[k], want))
				die("address %s, expected %s", got[k], want);
		}
	}
	n = 4; // short buffers: truncated, true length returned
	EQ(getpeername(fd, (struct sockaddr *)&c[2], &n), 0);
	EQ(n, dl);
	n = -1;
	FAILS(getpeername(fd, (struct sockaddr *)&c[2], &n), EINVAL);
	close(x);
	close(fd);
	close(l);
}
int main(void)
{
	t_init();
	one(AF_INET, 0, AF_INET, 0, 0);
	one(AF_INET, 1, AF_INET, 0, 0);
	one(AF_INET, 0, AF_INET, 0, 1);
	one(AF_INET, 1, AF_INET6, 1, 0);
	one(AF_INET6, 0, AF_INET6, 0, 0);
	one(AF_INET6, 1, AF_INET6, 0, 0);
	one(AF_INET6, 1, AF_INET, 0, 0);
	one(AF_INET6, 1, AF_INET, 0, 1);
	one(AF_INET6, 1, AF_INET6, 1, 0);
	struct sockaddr_in6 a;
	socklen_t n = sizeof a;
	int s = socket(AF_INET, SOCK_STREAM, 0);
	FAILS(getpeername(s, (struct sockaddr *)&a, &n), ENOTCONN);
	EQ(getsockname(s, (struct sockaddr *)&a, &n), 0);
	EQ(n, 16);
	EQ(port_of(s), 0);
	int p[2]; // after the peer's close the name is still known; after a reset or both ends closed it is not
	pair(p);
	close(p[1]);
	CHECK(ready(p[0], POLLRDHUP, 1000));
	n = sizeof a;
	EQ(getpeername(p[0], (struct sockaddr *)&a, &n), 0);
	EQ(shutdown(p[0], SHUT_WR), 0);
	CHECK(ready(p[0], 0, 1000) & POLLHUP);
	FAILS(getpeername(p[0], (struct sockaddr *)&a, &n), ENOTCONN);
	CHECK(port_of(p[0]) > 0);
	return t_ok("names");
}
