// The sender or the receiver of a large transfer is killed in the middle, many times: the survivor gets a correct
// prefix and then an end, at once.
#include "t.h"
static unsigned char b[1 << 17];
int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	unsigned x = 7;
	for (int i = 0; i < 40; i++) {
		int sender = i & 1; // 1: the child sends and dies
		pid_t kid = fork_child();
		if (!kid) {
			int fd = connect_to(port);
			uint64_t off = 0;
			for (;;) {
				if (sender) {
					pat_fill(b, 10000, off, 1);
					send_all(fd, b, 10000);
					off += 10000;
				} else {
					ssize_t r = recv(fd, b, 10000, 0);
					if (r <= 0)
						_exit(1);
					pat_check(b, r, off, 2);
					off += r;
				}
			}
		}
		int fd = accept(l, NULL, NULL);
		uint64_t off = 0;
		x = x * 1103515245 + 12345;
		uint64_t limit = 1000 + (x >> 8) % 3000000;
		int killed = 0;
		double t0 = 0;
		for (;;) {
			ssize_t r;
			if (sender) {
				r = recv(fd, b, sizeof b, 0);
				if (r > 0)
					pat_check(b, r, off, 1);
			} else {
				pat_fill(b, 20000, off, 2);
				r = send(fd, b, 20000, MSG_NOSIGNAL);
			}
			if (r < 0 && errno != ECONNRESET && errno != EPIPE)
				die("transfer ends with an unexpected errno");
			if (r <= 0)
				break;
			off += r;
			if (off >= limit && !killed) {
				kill(kid, SIGKILL);
				killed = 1;
				t0 = now();
			}
			if (killed && now() - t0 > 5)
				die("no end 5 s after the death");
		}
		if (!killed)
			die("ended before the kill after %llu bytes", (unsigned long long)off);
		reap_killed(kid);
		close(fd);
	}
	return t_ok("kill_bulk");
}
