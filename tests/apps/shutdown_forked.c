// When one of two processes that share a connection after a fork shuts it down, the calls of the other one end.
#include "t.h"
static int p[2];
static void child(struct sig s)
{
	char b[4];
	close(p[1]);
	tell(s);
	EQ(recv(p[0], b, 4, 0), 0); // most likely it waits already
	EQ(recv(p[0], b, 4, 0), 0);
	await(s); // Reading ends before writing where the two are shut down one after the other.
	CHECK(ready(p[0], POLLIN | POLLOUT, 0));
	FAILS(send(p[0], "x", 1, MSG_NOSIGNAL), EPIPE);
	tell(s);
	_exit(0);
}
int main(void)
{
	t_init();
	for (int i = 0; i < 2; i++) {
		struct sig a, b;
		pair(p);
		expect_shm(p[0]);
		sigpair(&a, &b);
		pid_t kid = fork_child();
		if (!kid)
			child(b);
		await(a);
		let_it_block(kid, kid);
		if (i) {
			EQ(shutdown(p[0], SHUT_RD), 0);
			EQ(shutdown(p[0], SHUT_WR), 0);
		} else
			EQ(shutdown(p[0], SHUT_RDWR), 0);
		tell(a);
		await(a);
		reap(kid);
		close(p[0]);
		close(p[1]);
	}
	return t_ok("shutdown_forked");
}
