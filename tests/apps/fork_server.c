// A server forks per connection: the child serves it and the parent closes it, which does not end it for the client. If
// a child is killed, the client sees that although the parent lives; if a child exits, the client sees the end.
#include "t.h"
int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	struct sig s, m;
	sigpair(&s, &m);
	pid_t cl = fork_child();
	if (!cl) {
		close(l);
		char b[100];
		pid_t server;
		for (int i = 0; i < 50; i++) { // mode: first byte. e echo until EOF, x exit after one echo, k tell the pid and wait
			int fd = connect_to(port), mode = i % 5;
			for (int k = 0; k < 20; k++) {
				send_all(fd, "e123456789", 10);
				recv_all(fd, b, 10);
				CHECK(!memcmp(b, "e123456789", 10));
			}
			if (mode == 0) {
				shutdown(fd, SHUT_WR);
				EQ(recv(fd, b, 1, 0), 0);
			} else if (mode == 1) {
				send_all(fd, "x123456789", 10);
				recv_all(fd, b, 10);
				EQ(recv(fd, b, 1, 0), 0); // the child is gone: end
			} else if (mode == 2) {
				send_all(fd, "k123456789", 10);
				recv_all(fd, &server, sizeof server);
				kill(server, SIGKILL);
				EQ(recv(fd, b, 1, 0), 0);
			} else if (mode == 3) {
				send_all(fd, "k123456789", 10);
				recv_all(fd, &server, sizeof server);
				send_all(fd, "never read", 10);
				kill(server, SIGKILL);
				FAILS(recv(fd, b, 1, 0), ECONNRESET);
			} // 4: just close
			close(fd);
		}
		tell(s);
		_exit(0);
	}
	signal(SIGCHLD, SIG_IGN);
	close(s.r); // so that the end of the client ends the loop
	close(s.w);
	struct pollfd pf[2] = { { l, POLLIN, 0 }, { m.r, POLLIN, 0 } };
	while (poll(pf, 2, -1) > 0 || errno == EINTR) {
		if (pf[1].revents)
			break;
		if (!pf[0].revents)
			continue;
		int fd = accept(l, NULL, NULL);
		CHECK(fd >= 0);
		pid_t kid = fork_child();
		if (!kid) {
			close(l);
			char b[10];
			ssize_t r;
			while ((r = recv(fd, b, 10, MSG_WAITALL)) == 10) {
				if (b[0] == 'k') {
					pid_t me = getpid();
					send_all(fd, &me, sizeof me);
					for (;;)
						pause();
				}
				send_all(fd, b, 10);
				if (b[0] == 'x')
					_exit(0);
			}
			EQ(r, 0);
			_exit(0);
		}
		close(fd);
	}
	await(m); // fails if the client died
	return t_ok("fork_server");
}
