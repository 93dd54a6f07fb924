// A socket with an option about packets (a mark, a device, a filter, a TTL) is the kernel's, and the option has its
// usual effect. When the option is removed, the socket is accelerated.
#include "t.h"
#include <linux/filter.h>
// As long as those that tcpdump makes: what the kernel tells of a filter it counts in instructions.
static int attach(int fd, unsigned verdict)
{
	struct sock_filter f[60];
	for (int i = 0; i < 60; i++)
		f[i] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, verdict);
	struct sock_fprog p = { 60, f };
	return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &p, sizeof p);
}
static int number(int fd, int level, int name, int v) { return setsockopt(fd, level, name, &v, sizeof v); }
static int with_filter(int fd) { return attach(fd, ~0u); }
static int with_mark(int fd) { return number(fd, SOL_SOCKET, SO_MARK, 7); }
static int with_mark_taken_back(int fd) { return with_mark(fd) ? -1 : number(fd, SOL_SOCKET, SO_MARK, 0); }
static int with_lo(int fd) { return setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "lo", 3); }
static int with_ttl(int fd) { return number(fd, IPPROTO_IP, IP_MINTTL, 5); }
static int transparent(int fd) { return number(fd, IPPROTO_IP, IP_TRANSPARENT, 1); }
static struct { const char *name; int (*set)(int), shm; } WAYS[] = {
	{ "filter", with_filter, 0 }, { "lo", with_lo, 0 }, { "ttl", with_ttl, 0 }, { "mark", with_mark, 0 },
	{ "mark taken back", with_mark_taken_back, 1 }, { "transparent", transparent, 0 },
};
static void both_ways(int a, int b)
{
	char buf[8];
	send_all(a, "question", 8);
	recv_all(b, buf, 8);
	CHECK(!memcmp(buf, "question", 8));
	send_all(b, "answer", 6);
	recv_all(a, buf, 6);
	CHECK(!memcmp(buf, "answer", 6));
}
// A client with the option, of a listener without.
static void client(int (*set)(int), int shm)
{
	int port, l = listen_on(&port), fd = socket(AF_INET, SOCK_STREAM, 0);
	if (set(fd) && (errno == EPERM || errno == ENOPROTOOPT))
		goto out;
	struct sockaddr_in a = addr4(port);
	EQ(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
	int s = accept(l, NULL, NULL);
	CHECK(s >= 0);
	both_ways(fd, s);
	expect_on(fd, shm ? "SHM" : "TCP", shm ? NULL : "packet-option");
	close(s);
out:
	close(fd);
	close(l);
}
// A listener with the option, set before or after listen(2).
static void server(int (*set)(int), int shm, int late)
{
	struct sockaddr_in a = addr4(0);
	int l = socket(AF_INET, SOCK_STREAM, 0), port;
	if (!late && set(l) && (errno == EPERM || errno == ENOPROTOOPT))
		return (void)close(l);
	EQ(bind(l, (struct sockaddr *)&a, sizeof a), 0);
	EQ(listen(l, 10), 0);
	if (late && set(l) && (errno == EPERM || errno == ENOPROTOOPT))
		return (void)close(l);
	port = port_of(l);
	int fd = connect_to(port), s = accept(l, NULL, NULL);
	CHECK(s >= 0);
	both_ways(fd, s);
	expect_on(fd, shm ? "SHM" : "TCP", shm ? NULL : "peer-plain");
	close(fd);
	close(s);
	close(l);
}
// A filter that accepts no packet: no client connects while it is set, and a waiting client does as soon as it is
// removed.
static void drained(void)
{
	int port, l = listen_on(&port);
	struct sockaddr_in a = addr4(port);
	EQ(attach(l, 0), 0);
	int fd = nonblock(socket(AF_INET, SOCK_STREAM, 0));
	FAILS(connect(fd, (struct sockaddr *)&a, sizeof a), EINPROGRESS);
	EQ(ready(fd, POLLOUT, 200), 0);
	EQ(number(l, SOL_SOCKET, SO_DETACH_FILTER, 0), 0);
	EQ(ready(fd, POLLOUT, 20000), POLLOUT);
	// What was sent need not have arrived yet.
	EQ(fcntl(fd, F_SETFL, 0), 0);
	int s = accept(l, NULL, NULL);
	CHECK(s >= 0);
	both_ways(s, fd);
	close(s);
	close(fd);
	close(l);
}
// On a connection, with bytes on their way in both directions.
static void on_connection(void)
{
	enum { N = 20000 };
	static unsigned char b[N];
	int p[2];
	pair(p);
	for (int i = 0; i < 2; i++) {
		pat_fill(b, N, 0, i);
		send_all(p[i], b, N);
	}
	expect_shm(p[0]);
	EQ(with_filter(p[0]), 0);
	expect_on(p[0], "TCP", "packet-option");
	for (int i = 0; i < 2; i++) {
		pat_fill(b, N, N, i);
		send_all(p[i], b, N);
	}
	for (int i = 0; i < 2; i++)
		for (int k = 0; k < 2; k++) {
			recv_all(p[!i], b, N);
			pat_check(b, N, k * N, i);
		}
	close(p[0]);
	EQ(recv(p[1], b, 1, 0), 0);
	close(p[1]);
}
// An address without a port: connect(2) chooses that, and shows both.
static void late_port(void)
{
	int port, l = listen_on(&port), fd = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in a = addr4(0), to = addr4(port), peer;
	socklen_t n = sizeof peer;
	a.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 4);
	EQ(number(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1), 0);
	EQ(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
	EQ(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
	int s = accept(l, (struct sockaddr *)&peer, &n);
	CHECK(s >= 0);
	CHECK(peer.sin_addr.s_addr == a.sin_addr.s_addr && peer.sin_port && ntohs(peer.sin_port) == port_of(fd));
	both_ways(fd, s);
	expect_shm(fd);
	close(fd);
	close(s);
	close(l);
}
int main(void)
{
	t_init();
	for (unsigned i = 0; i < sizeof WAYS / sizeof *WAYS; i++) {
		client(WAYS[i].set, WAYS[i].shm);
		server(WAYS[i].set, WAYS[i].shm, 0);
		// What was left to the kernel once stays there.
		server(WAYS[i].set, 0, 1);
	}
	drained();
	on_connection();
	late_port();
	return t_ok("packet_options");
}
