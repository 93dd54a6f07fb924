// A server is killed; before the client hears of it, it passes its connections on: one that the server had is at its end,
// one that it had not taken yet is another worker's.
#include "t.h"
static void worker(int l)
{
	for (;;) {
		char c;
		int fd = accept(l, NULL, NULL);
		CHECK(fd >= 0);
		while (recv(fd, &c, 1, 0) == 1)
			send_all(fd, &c, 1);
		close(fd);
	}
}
int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	for (int i = 0; i < 5; i++) {
		int u[2], st;
		char c;
		EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, u), 0);
		pid_t w = fork_child();
		if (!w)
			worker(l);
		int a = connect_to(port);
		send_all(a, "a", 1);
		recv_all(a, &c, 1);
		kill(w, SIGSTOP);
		EQ(waitpid(w, &st, WUNTRACED), w);
		CHECK(WIFSTOPPED(st));
		int b = connect_to(port);
		send_all(b, "b", 1);
		kill(w, SIGKILL);
		reap_killed(w);
		pass_fd(u[0], b);
		pass_fd(u[0], a);
		close(a);
		close(b);
		b = take_fd(u[1]);
		a = take_fd(u[1]);
		EQ(recv(a, &c, 1, 0), 0);
		w = fork_child();
		if (!w)
			worker(l);
		recv_all(b, &c, 1);
		EQ(c, 'b');
		kill(w, SIGKILL);
		reap_killed(w);
		close(a);
		close(b);
		close(u[0]);
		close(u[1]);
	}
	return t_ok("pass_killed");
}
