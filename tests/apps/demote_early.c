// A server demotes its connection before the client makes its next call. If the connection began on TCP, the server may
// have switched to shared memory by then and the client not yet; every byte still arrives in order.
#include "t.h"
enum { CONNS = 30, LEN = 5000 };
int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	struct sig a, b;
	sigpair(&a, &b);
	pid_t client = fork_child();
	if (!client) {
		unsigned char x[LEN];
		close(l);
		for (int i = 0; i < CONNS; i++) {
			int fd = connect_to(port);
			for (int k = 0; k < 3; k++) {
				pat_fill(x, 100, k * 100, i);
				send_all(fd, x, 100);
			}
			tell(b);
			await(b); // the server has gone wherever it goes
			pat_fill(x, LEN, 300, i);
			if (i % 3 == 0)
				send_all(fd, x, LEN);
			recv_all(fd, x, LEN);
			pat_check(x, LEN, 0, i + 1000);
			if (i % 3 == 1) {
				pat_fill(x, LEN, 300, i);
				send_all(fd, x, LEN);
			}
			if (i % 3 == 2) { // as little as it can
				close(fd);
				continue;
			}
			EQ(shutdown(fd, SHUT_WR), 0);
			EQ(recv(fd, x, 1, 0), 0);
			close(fd);
		}
		_exit(0);
	}
	for (int i = 0; i < CONNS; i++) {
		unsigned char x[300 + LEN];
		int fd = accept(l, NULL, NULL), got = 0, u[2];
		CHECK(fd >= 0);
		await(a);
		// Enough calls to notice an offer in between, some of which leave bytes unread.
		for (int k = 0; k < 40; k++) {
			ssize_t r = recv(fd, x + got, k < 20 ? 0 : 10, MSG_DONTWAIT);
			CHECK(r >= 0 || errno == EAGAIN);
			got += r > 0 ? r : 0;
		}
		EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, u), 0);
		pass_fd(u[0], fd); // a passed descriptor must be the kernel's
		close(u[0]);
		int other = take_fd(u[1]);
		close(u[1]);
		close(fd);
		recv_all(other, x + got, 300 - got);
		pat_check(x, 300, 0, i);
		tell(a);
		pat_fill(x, LEN, 0, i + 1000);
		send_all(other, x, LEN);
		if (i % 3 != 2) {
			recv_all(other, x, LEN);
			pat_check(x, LEN, 300, i);
		}
		EQ(recv(other, x, 1, 0), 0);
		close(other);
	}
	reap(client);
	return t_ok("demote_early");
}
