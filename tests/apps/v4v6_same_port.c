// One port number on IPv4 and IPv6, and on 127.0.0.1 and 127.0.0.2, belongs to different servers in different
// processes, and each client reaches the right one.
#include "t.h"
static void server(int l, char name)
{
	for (;;) {
		int fd = accept(l, NULL, NULL);
		char c;
		CHECK(fd >= 0);
		while (recv(fd, &c, 1, 0) == 1)
			send_all(fd, &name, 1);
		close(fd);
	}
}
static char ask(int fam, uint32_t host, int port)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(host) };
	struct sockaddr_in6 b = { .sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = in6addr_loopback };
	int fd = socket(fam, SOCK_STREAM, 0);
	if (connect(fd, fam == AF_INET ? (void *)&a : (void *)&b, fam == AF_INET ? sizeof a : sizeof b))
		return errno == ECONNREFUSED ? '!' : '?';
	char c = 'q';
	send_all(fd, &c, 1);
	recv_all(fd, &c, 1);
	close(fd);
	return c;
}
int main(void)
{
	t_init();
	int port = 0, l[3], one = 1, done = 0;
	for (int tries = 0; tries < 50 && !done; tries++) {
		l[0] = listen_on(&port);
		l[1] = socket(AF_INET6, SOCK_STREAM, 0);
		l[2] = socket(AF_INET, SOCK_STREAM, 0);
		EQ(setsockopt(l[1], IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one), 0);
		struct sockaddr_in6 b = { .sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = in6addr_loopback };
		struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(0x7f000002) };
		done = !bind(l[1], (void *)&b, sizeof b) && !bind(l[2], (void *)&a, sizeof a) && !listen(l[1], 9) && !listen(l[2], 9);
		if (!done)
			for (int i = 0; i < 3; i++)
				close(l[i]);
	}
	CHECK(done);
	pid_t k[3];
	for (int i = 0; i < 3; i++) {
		k[i] = fork_child();
		if (!k[i]) {
			for (int j = 0; j < 3; j++)
				if (j != i)
					close(l[j]);
			server(l[i], 'A' + i);
		}
	}
	for (int i = 0; i < 3; i++)
		close(l[i]);
	for (int i = 0; i < 20; i++) {
		EQ(ask(AF_INET, 0x7f000001, port), 'A');
		EQ(ask(AF_INET6, 0, port), 'B');
		EQ(ask(AF_INET, 0x7f000002, port), 'C');
		EQ(ask(AF_INET, 0x7f000003, port), '!'); // nobody there
	}
	for (int i = 0; i < 3; i++) {
		kill(k[i], SIGKILL);
		reap_killed(k[i]);
	}
	EQ(ask(AF_INET6, 0, port), '!');
	return t_ok("v4v6_same_port");
}
