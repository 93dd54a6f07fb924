// Options whose value, or whose answer, exists only with a connection have the values of TCP: buffers, segments, the
// path's MTU, the peer's name.
#include "t.h"
#ifndef SO_PEERNAME
#define SO_PEERNAME 28
#endif
static int get(int fd, int level, int name)
{
	int v = -1;
	socklen_t n = sizeof v;
	if (getsockopt(fd, level, name, &v, &n))
		die("option %d of level %d", name, level);
	return v;
}
static int set(int fd, int level, int name, int v) { return setsockopt(fd, level, name, &v, sizeof v); }
static void told(int fd)
{
	int fresh = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(get(fd, SOL_SOCKET, SO_SNDBUF) > get(fresh, SOL_SOCKET, SO_SNDBUF));
	CHECK(get(fd, SOL_SOCKET, SO_RCVBUF) >= get(fresh, SOL_SOCKET, SO_RCVBUF));
	FAILS(getsockopt(fresh, IPPROTO_IP, IP_MTU, &(int){ 0 }, &(socklen_t){ 4 }), ENOTCONN);
	FAILS(getsockopt(fd, IPPROTO_IPV6, IPV6_MTU, &(int){ 0 }, &(socklen_t){ 4 }), EOPNOTSUPP);
	CHECK(get(fd, IPPROTO_TCP, TCP_MAXSEG) > get(fresh, IPPROTO_TCP, TCP_MAXSEG));
	CHECK(get(fd, IPPROTO_IP, IP_MTU) > get(fd, IPPROTO_TCP, TCP_MAXSEG));
	int most = get(fd, IPPROTO_TCP, TCP_MAXSEG);
	EQ(set(fd, IPPROTO_TCP, TCP_MAXSEG, 1000), 0); // too late
	EQ(get(fd, IPPROTO_TCP, TCP_MAXSEG), most);
	FAILS(set(fd, IPPROTO_TCP, TCP_MAXSEG, 1), EINVAL);
	EQ(set(fresh, IPPROTO_TCP, TCP_WINDOW_CLAMP, 0), 0);
	FAILS(set(fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, 0), EINVAL);
	close(fresh);
}
static void names(int fd)
{
	struct sockaddr_in a, b, big[2];
	socklen_t n = sizeof a, k = sizeof b;
	EQ(getpeername(fd, (void *)&a, &n), 0);
	EQ(getsockopt(fd, SOL_SOCKET, SO_PEERNAME, &b, &k), 0);
	EQ(k, sizeof b);
	EQ(memcmp(&a, &b, sizeof a), 0);
	k = sizeof big;
	FAILS(getsockopt(fd, SOL_SOCKET, SO_PEERNAME, big, &k), EINVAL);
	int none = socket(AF_INET, SOCK_STREAM, 0);
	k = sizeof b;
	FAILS(getsockopt(none, SOL_SOCKET, SO_PEERNAME, &b, &k), ENOTCONN);
	close(none);
}
static void forced(int fd)
{
	if (set(fd, SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20) && errno == EPERM)
		return;
	EQ(set(fd, SOL_SOCKET, SO_SNDBUFFORCE, 48 << 20), 0);
	EQ(get(fd, SOL_SOCKET, SO_RCVBUF), 128 << 20);
	EQ(get(fd, SOL_SOCKET, SO_SNDBUF), 96 << 20);
}
static void lengths(int fd, int other)
{
	char b[4];
	struct sockaddr_in a;
	socklen_t n = -1;
	struct iovec v = { b, sizeof b };
	struct mmsghdr m = { .msg_hdr = { .msg_iov = &v, .msg_iovlen = 1 } };
	struct timespec t[] = { { -1, 0 }, { 0, 1000000000 }, { 0, -1 } };
	send_all(other, "xy", 2);
	EQ(ready(fd, POLLIN, -1), POLLIN);
	for (int i = 0; i < 3; i++)
		FAILS(recvmmsg(fd, &m, 1, 0, t + i), EINVAL);
	FAILS(recvfrom(fd, b, 1, 0, (void *)&a, &n), EINVAL);
	n = sizeof a;
	EQ(recvfrom(fd, b, 4, 0, (void *)&a, &n), 1); // the call that failed has read
	EQ(b[0], 'y');
	EQ(n, 0);
}
// The segment size that was set on a listener limits both ends.
static void bounded(void)
{
	int port, l = listen_on(&port);
	EQ(set(l, IPPROTO_TCP, TCP_MAXSEG, 873), 0);
	int c = connect_to(port), s = accept(l, NULL, NULL);
	for (int i = 0; i < 2; i++) {
		int v = get(i ? s : c, IPPROTO_TCP, TCP_MAXSEG);
		CHECK(v > 536 && v <= 873);
	}
	close(c), close(s), close(l);
}
// A connection has its listener's options, but neither its priority nor what concerns its queue.
static void inherited(void)
{
	int port, l = listen_on(&port);
	EQ(set(l, SOL_SOCKET, SO_PRIORITY, 5), 0);
	EQ(set(l, SOL_SOCKET, SO_KEEPALIVE, 1), 0);
	int c = connect_to(port), s = accept(l, NULL, NULL);
	EQ(get(s, SOL_SOCKET, SO_PRIORITY), 0);
	EQ(get(s, SOL_SOCKET, SO_KEEPALIVE), 1);
	close(c), close(s);
	unsigned long long rate = 0;
	socklen_t n = sizeof rate;
	EQ(set(l, SOL_SOCKET, SO_REUSEPORT, 1), 0);
	EQ(set(l, SOL_SOCKET, SO_MAX_PACING_RATE, 123456), 0);
	c = connect_to(port), s = accept(l, NULL, NULL);
	EQ(get(s, SOL_SOCKET, SO_REUSEPORT), 1);
	EQ(get(c, SOL_SOCKET, SO_REUSEPORT), 0);
	EQ(get(s, SOL_SOCKET, SO_MAX_PACING_RATE), 123456);
	EQ(getsockopt(s, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &n), 0);
	EQ(n, 8);
	EQ(rate, 123456);
	EQ(get(c, SOL_SOCKET, SO_MAX_PACING_RATE), -1); // there is no limit
	EQ(getsockopt(c, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &n), 0);
	CHECK(rate == -1ull);
	close(c), close(s);
	if (!set(l, IPPROTO_TCP, TCP_FASTOPEN, 5)) {
		c = connect_to(port), s = accept(l, NULL, NULL);
		EQ(get(s, IPPROTO_TCP, TCP_FASTOPEN), 0);
		close(c), close(s);
	}
	close(l);
}
// A negative time to linger is the longest one, which getsockopt shows as the kernel of this machine does.
static void lingers(int fd)
{
	struct linger a = { 1, -1 }, b = { 0 }, c = { 0 };
	socklen_t n = sizeof a;
	int other = socket(AF_INET, SOCK_STREAM, IPPROTO_TCP), unix_one = socket(AF_UNIX, SOCK_STREAM, 0);
	for (int i = 0; i < 2; i++, a.l_linger = INT_MIN) {
		EQ(setsockopt(unix_one, SOL_SOCKET, SO_LINGER, &a, n), 0);
		EQ(getsockopt(unix_one, SOL_SOCKET, SO_LINGER, &b, &n), 0);
		for (int j = 0; j < 2; j++) {
			EQ(setsockopt(j ? other : fd, SOL_SOCKET, SO_LINGER, &a, n), 0);
			EQ(getsockopt(j ? other : fd, SOL_SOCKET, SO_LINGER, &c, &n), 0);
			EQ(c.l_onoff, 1);
			EQ(c.l_linger, b.l_linger);
		}
	}
	close(other), close(unix_one);
}
// A listener's TCP_INFO counts the connects that wait, and has its backlog.
static void waiting(void)
{
	int port, l = listen_n(7, &port), c[3];
	for (int i = 0; i <= 3; i++) {
		struct tcp_info t;
		socklen_t n = sizeof t;
		EQ(getsockopt(l, IPPROTO_TCP, TCP_INFO, &t, &n), 0);
		EQ(t.tcpi_state, TCP_LISTEN);
		EQ(t.tcpi_unacked, i);
		EQ(t.tcpi_sacked, 7);
		if (i < 3)
			c[i] = connect_to(port);
	}
	for (int i = 0; i < 3; i++)
		close(c[i]);
	close(l);
}
int main(void)
{
	t_init();
	int p[2];
	pair(p);
	expect_shm(p[0]);
	for (int i = 0; i < 2; i++) {
		told(p[i]);
		names(p[i]);
		lengths(p[i], p[!i]);
		forced(p[i]);
		lingers(p[i]);
	}
	expect_shm(p[0]);
	bounded();
	inherited();
	waiting();
	return t_ok("connected_options");
}
