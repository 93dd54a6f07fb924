// A backlog of more connects than a link between two processes has slots: one connect more than the backlog is established,
// whether its client has closed it since or not, and the next one is pending until another is accepted.
#include "t.h"
static int l, port;
static int try_connect(void)
{
	struct sockaddr_in a = addr4(port);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK(fd >= 0);
	FAILS(connect(fd, (struct sockaddr *)&a, sizeof a), EINPROGRESS);
	return fd;
}
static int accepted(void)
{
	EQ(ready(l, POLLIN, 20000), POLLIN);
	int s = accept(l, NULL, NULL);
	CHECK(s >= 0);
	return s;
}
static void with(int backlog, int live)
{
	int held[2 * live], e;
	char b;
	l = listen_n(backlog, &port);
	for (int i = 0; i < live; i++) { // connections that take slots, and none of the queue
		held[2 * i] = connect_to(port);
		held[2 * i + 1] = accepted();
	}
	for (int i = 0; i <= backlog; i++) {
		int c = try_connect();
		if (ready(c, POLLOUT, 5000) != POLLOUT)
			die("connect %d of a backlog of %d is pending", i, backlog);
		close(c);
	}
	int one = try_connect(), two = try_connect();
	EQ(ready(one, POLLIN | POLLOUT, 50), 0);
	EQ(ready(two, POLLIN | POLLOUT, 50), 0);
	FAILS(send(one, "1", 1, MSG_NOSIGNAL), EAGAIN);
	close(two); // never seen by the server
	close(accepted());
	EQ(ready(one, POLLOUT, 20000), POLLOUT);
	socklen_t n = sizeof e;
	EQ(getsockopt(one, SOL_SOCKET, SO_ERROR, &e, &n), 0);
	EQ(e, 0);
	EQ(send(one, "1", 1, MSG_NOSIGNAL), 1);
	for (int i = 0; i < backlog; i++) {
		int s = accepted();
		EQ(recv(s, &b, 1, 0), 0);
		close(s);
	}
	int s = accepted();
	EQ(recv(s, &b, 1, 0), 1);
	EQ(b, '1');
	EQ(ready(l, POLLIN, 20), 0);
	close(s), close(one), close(l);
	for (int i = 0; i < 2 * live; i++)
		close(held[i]);
}
int main(void)
{
	t_init();
	int most = 0;
	FILE *f = fopen("/proc/sys/net/core/somaxconn", "r");
	if (!f || fscanf(f, "%d", &most) != 1 || most < 1200)
		t_skip("backlog_large", "net.core.somaxconn is too small");
	fclose(f);
	with(511, 0);
	with(1200, 0);
	with(400, 200);
	return t_ok("backlog_large");
}
