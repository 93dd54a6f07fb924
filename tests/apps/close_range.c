// close_range and closefrom close connections, and the peers see the end; CLOSE_RANGE_CLOEXEC only marks them.
#include "t.h"
#include <linux/close_range.h>
int main(void)
{
	t_init();
	int p[4][2], base = 300;
	char b[4];
	for (int i = 0; i < 4; i++) {
		int q[2];
		pair(q);
		EQ(dup2(q[0], base + i), base + i);
		close(q[0]);
		p[i][0] = base + i;
		p[i][1] = q[1];
	}
	EQ(close_range(base, base + 1, 0), 0);
	EQ(recv(p[0][1], b, 4, 0), 0);
	EQ(recv(p[1][1], b, 4, 0), 0);
	FAILS(recv(base, b, 4, 0), EBADF);
	send_all(base + 2, "abcd", 4);
	recv_all(p[2][1], b, 4);
	EQ(close_range(base, base + 100, CLOSE_RANGE_CLOEXEC), 0);
	EQ(fcntl(base + 2, F_GETFD), FD_CLOEXEC);
	send_all(base + 3, "abcd", 4);
	recv_all(p[3][1], b, 4);
	FAILS(close_range(5, 4, 0), EINVAL);
	closefrom(base);
	EQ(recv(p[2][1], b, 4, 0), 0);
	EQ(recv(p[3][1], b, 4, 0), 0);
	// a daemon's habit: a child closes everything from 3 on; the parent's connections live
	int q[2];
	pair(q);
	pid_t kid = fork_child();
	if (!kid) {
		close_range(3, ~0u, 0);
		for (int i = 3; i < 100; i++)
			close(i);
		_exit(0);
	}
	reap(kid);
	send_all(q[0], "live", 4);
	recv_all(q[1], b, 4);
	EQ(ready(q[0], POLLIN | POLLRDHUP, 0), 0);
	return t_ok("close_range");
}
