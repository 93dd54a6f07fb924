// Processes that were forked are switched separately. One that has not opened a socket yet can be switched off as well,
// and its children are off too. A connection that two processes share goes to the kernel for both.
#include "ctl.h"
static void is_accelerated(int yes)
{
	int p[2];
	char b;
	pair(p);
	send_all(p[0], "x", 1);
	recv_all(p[1], &b, 1);
	if (yes)
		expect_shm(p[0]);
	else if (has_ctl())
		expect_on(p[0], "TCP", "switched-off");
	close(p[0]);
	close(p[1]);
}
int main(void)
{
	t_init();
	// Before there is a socket.
	ctl("off", getpid());
	is_accelerated(0);
	pid_t kid = fork_child();
	if (!kid) {
		is_accelerated(0);
		ctl("status", getpid());
		ctl_ask("on", getpid());
		is_accelerated(1);
		_exit(0);
	}
	reap(kid);
	ctl_ask("on", getpid());
	is_accelerated(1);

	int p[2], u[2];
	char b[8];
	pair(p);
	EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, u), 0);
	kid = fork_child();
	if (!kid) {
		close(p[1]);
		// It sleeps in the connection that the parent has as well.
		recv_all(p[0], b, 5);
		CHECK(!memcmp(b, "child", 5));
		send_all(p[0], "answer", 6);
		EQ(write(u[1], "x", 1), 1);
		_exit(0);
	}
	let_it_block(kid, kid);
	ctl("off", kid);
	is_accelerated(1);
	send_all(p[1], "child", 5);
	recv_all(p[1], b, 6);
	CHECK(!memcmp(b, "answer", 6));
	EQ(read(u[0], b, 1), 1);
	reap(kid);
	send_all(p[0], "mine", 4);
	recv_all(p[1], b, 4);
	CHECK(!memcmp(b, "mine", 4));
	send_all(p[1], "back", 4);
	recv_all(p[0], b, 4);
	CHECK(!memcmp(b, "back", 4));
	close(p[0]);
	EQ(recv(p[1], b, 1, 0), 0);
	return t_ok("ctl_fork");
}
