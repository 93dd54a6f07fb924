// Two listeners in two processes share one port by SO_REUSEPORT: all connections are served by one of them, also after
// one process has died.
#include "t.h"
static int rp(int port)
{
	int one = 1, s = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in a = addr4(port);
	EQ(setsockopt(s, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one), 0);
	EQ(bind(s, (struct sockaddr *)&a, sizeof a), 0);
	EQ(listen(s, 100), 0);
	return s;
}
int main(void)
{
	t_init();
	int first = rp(0), port = port_of(first);
	pid_t k[2];
	struct sig a, b;
	sigpair(&a, &b);
	for (int i = 0; i < 2; i++) {
		k[i] = fork_child();
		if (!k[i]) {
			int l = i ? (close(first), rp(port)) : first;
			tell(a);
			for (;;) {
				int fd = accept(l, NULL, NULL);
				CHECK(fd >= 0);
				char c = '0' + i, x;
				if (recv(fd, &x, 1, 0) == 1)
					send_all(fd, &c, 1);
				close(fd);
			}
		}
	}
	await(b);
	await(b);
	close(first);
	int used[2] = { 0, 0 };
	for (int i = 0; i < 300; i++) {
		char c;
		if (i == 200) {
			kill(k[0], SIGKILL);
			reap_killed(k[0]);
		}
		int fd = connect_to(port);
		send_all(fd, "?", 1);
		recv_all(fd, &c, 1);
		CHECK(c == '1' || (c == '0' && i < 200));
		used[c - '0']++;
		close(fd);
	}
	CHECK(used[1] >= 100);
	kill(k[1], SIGKILL);
	reap_killed(k[1]);
	struct sockaddr_in sa = addr4(port);
	FAILS(connect(socket(AF_INET, SOCK_STREAM, 0), (struct sockaddr *)&sa, sizeof sa), ECONNREFUSED);
	return t_ok("reuseport");
}
