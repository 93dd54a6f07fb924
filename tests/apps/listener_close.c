// When a listener is closed, or its process dies, with connections waiting, their clients get a reset, as with TCP.
#include "t.h"
int main(void)
{
	t_init();
	for (int mode = 0; mode < 3; mode++) { // close, shutdown(SHUT_RD), kill
		int port, fd[5], l = -1;
		pid_t kid = 0;
		struct sig s, m;
		sigpair(&s, &m);
		if (mode < 2)
			l = listen_on(&port);
		else {
			kid = fork_child();
			if (!kid) {
				listen_on(&port);
				if (write(s.w, &port, 4) != 4)
					die("pipe");
				for (;;)
					pause();
			}
			CHECK(read(m.r, &port, 4) == 4);
		}
		for (int i = 0; i < 5; i++) {
			fd[i] = connect_to(port);
			if (i & 1)
				send_all(fd[i], "waiting", 7);
		}
		if (l >= 0)
			CHECK(ready(l, POLLIN, 1000));
		if (mode == 0)
			close(l);
		else if (mode == 1)
			EQ(shutdown(l, SHUT_RD), 0);
		else {
			kill(kid, SIGKILL);
			reap_killed(kid);
		}
		for (int i = 0; i < 5; i++) {
			char c;
			CHECK(ready(fd[i], POLLIN | POLLRDHUP, 2000));
			EQ(ready(fd[i], POLLIN | POLLOUT | POLLRDHUP, 0), POLLIN | POLLOUT | POLLRDHUP | POLLERR | POLLHUP);
			FAILS(recv(fd[i], &c, 1, 0), ECONNRESET);
			EQ(recv(fd[i], &c, 1, 0), 0);
			close(fd[i]);
		}
		struct sockaddr_in a = addr4(port);
		int x = socket(AF_INET, SOCK_STREAM, 0);
		FAILS(connect(x, (struct sockaddr *)&a, sizeof a), ECONNREFUSED);
		close(x);
		if (mode == 1) { // a listener that was shut down can listen again (a port chosen by the kernel may change)
			FAILS(accept(l, NULL, NULL), EINVAL);
			EQ(listen(l, 5), 0);
			x = connect_to(port_of(l));
			int y = accept(l, NULL, NULL);
			CHECK(y >= 0);
			close(x);
			close(y);
			close(l);
		}
	}
	return t_ok("listener_close");
}
