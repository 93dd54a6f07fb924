// Of two listeners at one port, of which one is bound to the loopback device, that one gets every connection by
// loopback.
#include "t.h"
int main(void)
{
	t_init();
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof a;
	int l[2], one = 1;
	for (int i = 0; i < 2; i++) {
		l[i] = nonblock(socket(AF_INET, SOCK_STREAM, 0));
		EQ(setsockopt(l[i], SOL_SOCKET, SO_REUSEPORT, &one, sizeof one), 0);
		if (i == 1 && setsockopt(l[i], SOL_SOCKET, SO_BINDTODEVICE, "lo", 3))
			t_skip("reuseport_device", "SO_BINDTODEVICE is not allowed here");
		EQ(bind(l[i], (void *)&a, n), 0);
		EQ(listen(l[i], 100), 0);
		EQ(getsockname(l[i], (void *)&a, &n), 0);
	}
	for (int k = 0; k < 50; k++) {
		int c = socket(AF_INET, SOCK_STREAM, 0);
		EQ(connect(c, (void *)&a, n), 0);
		struct pollfd p[2] = { { l[0], POLLIN, 0 }, { l[1], POLLIN, 0 } };
		EQ(poll(p, 2, -1), 1);
		EQ(p[0].revents, 0);
		int s = accept(l[1], NULL, NULL);
		CHECK(s >= 0);
		close(s), close(c);
	}
	return t_ok("reuseport_device");
}
