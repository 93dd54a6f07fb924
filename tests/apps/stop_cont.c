// A peer that is stopped (SIGSTOP) only pauses: writes go on until the buffer is full, nothing is lost, and other peers
// go on.
#include "t.h"
int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	static unsigned char b[60000], g[60000];
	pid_t kid = fork_child(), kid2 = kid ? fork_child() : 1;
	if (!kid || !kid2) {
		int fd = connect_to(port);
		char who = kid ? 'B' : 'A';
		send_all(fd, &who, 1);
		ssize_t r;
		while ((r = recv(fd, b, sizeof b, 0)) > 0)
			send_all(fd, b, r);
		_exit(r != 0);
	}
	int fd[2];
	for (int i = 0; i < 2; i++) {
		int s = accept(l, NULL, NULL);
		char who;
		recv_all(s, &who, 1);
		fd[who - 'A'] = s;
	}
	for (int round = 0; round < 5; round++) {
		int st;
		kill(kid, SIGSTOP);
		EQ(waitpid(kid, &st, WUNTRACED), kid);
		CHECK(WIFSTOPPED(st));
		pat_fill(b, sizeof b, round, 1);
		EQ(send(fd[0], b, 30000, 0), 30000);
		EQ(ready(fd[0], POLLIN | POLLRDHUP, 0), 0);
		for (int i = 0; i < 200; i++) {
			send_all(fd[1], b, 100);
			recv_all(fd[1], g, 100);
		}
		FAILS(recv(fd[0], g, 1, MSG_DONTWAIT), EAGAIN);
		kill(kid, SIGCONT);
		recv_all(fd[0], g, 30000);
		CHECK(!memcmp(b, g, 30000));
	}
	// killed while stopped
	kill(kid, SIGSTOP);
	kill(kid, SIGKILL);
	EQ(recv(fd[0], g, 1, 0), 0);
	reap_killed(kid);
	close(fd[1]);
	reap(kid2);
	return t_ok("stop_cont");
}
