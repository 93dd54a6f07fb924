// A live connection is passed to another process by SCM_RIGHTS, in the middle of the stream; the sender closes its copy.
#include "t.h"
int main(void)
{
	t_init();
	int port, l = listen_on(&port), u[2];
	char b[16];
	EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, u), 0);
	pid_t kid = fork_child();
	if (!kid) { // worker: serves what it is given
		close(l);
		for (int i = 0; i < 21; i++) {
			int fd = take_fd(u[1]);
			if (i == 20) { // a passed listener
				int s = accept(fd, NULL, NULL);
				CHECK(s >= 0);
				send_all(s, "accepted", 8);
				_exit(0);
			}
			recv_all(fd, b, 4);
			CHECK(!memcmp(b, "5678", 4)); // what the first process left unread
			send_all(fd, "worker", 6);
			EQ(recv(fd, b, 1, 0), 0);
			close(fd);
		}
		_exit(1);
	}
	close(u[1]);
	for (int i = 0; i < 20; i++) {
		int c = connect_to(port), s = accept(l, NULL, NULL);
		send_all(c, "12345678", 8);
		recv_all(s, b, 4);
		send_all(s, "main", 4);
		pass_fd(u[0], s);
		close(s);
		recv_all(c, b, 10);
		CHECK(!memcmp(b, "mainworker", 10));
		EQ(ready(c, POLLIN | POLLRDHUP, 0), 0);
		shutdown(c, SHUT_WR);
		EQ(recv(c, b, 1, 0), 0);
		close(c);
	}
	pass_fd(u[0], l);
	close(l);
	int c = connect_to(port);
	recv_all(c, b, 8);
	reap(kid);
	return t_ok("scm_rights");
}
