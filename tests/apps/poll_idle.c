// A server that polls or selects on its listener sleeps again after its clients have ended.
#include "t.h"
static double cpu(void)
{
	struct rusage u;
	EQ(getrusage(RUSAGE_SELF, &u), 0);
	return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}
int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	for (int way = 0; way < 2; way++) {
		for (int n = 0; n < 4; n++) {
			pid_t kid = fork_child();
			if (!kid) {
				char c;
				int fd = connect_to(port);
				recv_all(fd, &c, 1);
				_exit(0);
			}
			int fd = accept(l, NULL, NULL);
			if (n == 0)
				expect_shm(fd);
			send_all(fd, "x", 1);
			close(fd);
			reap(kid);
		}
		double before = cpu();
		if (way == 0) {
			EQ(ready(l, POLLIN, 400), 0);
		} else {
			fd_set r;
			FD_ZERO(&r);
			FD_SET(l, &r);
			EQ(select(l + 1, &r, NULL, NULL, &(struct timeval){ 0, 400000 }), 0);
		}
		double spent = cpu() - before;
		if (spent > 0.2)
			die("%.0f ms of CPU in an idle wait of 400 ms", spent * 1000);
	}
	return t_ok("poll_idle");
}
