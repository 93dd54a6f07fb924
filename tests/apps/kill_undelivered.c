// The peer writes and is killed before we read: all its bytes arrive, and then the end, or a reset if it left data
// unread.
#include "t.h"
int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	static const int sizes[] = { 1, 100, 5000, 60000 };
	static unsigned char b[70000];
	for (int unread = 0; unread < 2; unread++)
		for (int k = 0; k < 4; k++) {
			struct sig s, m;
			sigpair(&s, &m);
			pid_t kid = fork_child();
			if (!kid) {
				int fd = connect_to(port);
				pat_fill(b, sizes[k], 0, k);
				send_all(fd, b, sizes[k]);
				if (unread)
					CHECK(ready(fd, POLLIN, 5000));
				else
					recv_all(fd, b, 3);
				tell(s);
				kill(getpid(), SIGKILL);
			}
			int fd = accept(l, NULL, NULL);
			send_all(fd, "abc", 3);
			await(m);
			reap_killed(kid);
			// all is written; on TCP all has arrived as well (it fits into the receiver's window)
			int got = 0;
			ssize_t r;
			while ((r = recv(fd, b + got, 777, 0)) > 0)
				got += r;
			if (unread)
				CHECK(r == -1 && errno == ECONNRESET);
			else
				EQ(r, 0);
			EQ(got, sizes[k]);
			pat_check(b, got, 0, k);
			close(fd);
			close(s.r);
			close(s.w);
			close(m.r);
			close(m.w);
		}
	return t_ok("kill_undelivered");
}
