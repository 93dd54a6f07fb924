// A server that forks for each connection, and a client that forks while it has one, have as many descriptors after
// many connections as after few.
#include "t.h"
enum { WARM = 1200, ALL = 1700, MORE = 100 };
static void serve(int l, int forks)
{
	signal(SIGCHLD, SIG_IGN);
	for (;;) {
		char c;
		int fd = accept(l, NULL, NULL);
		CHECK(fd >= 0);
		if (forks && fork()) {
			close(fd);
			continue;
		}
		if (forks)
			close(l);
		while (recv(fd, &c, 1, 0) == 1)
			send_all(fd, &c, 1);
		close(fd);
		if (forks)
			_exit(0);
	}
}
int main(void)
{
	t_init();
	for (int who = 0; who < 2; who++) { // whether the client forks, or the server
		int port, l = listen_on(&port), warm[2] = { 0 };
		pid_t server = fork_child();
		if (!server)
			serve(l, who);
		close(l);
		for (int i = 0; i < ALL; i++) {
			char c;
			int fd = connect_to(port);
			send_all(fd, "x", 1);
			recv_all(fd, &c, 1);
			pid_t k = who ? 0 : fork_child();
			if (!who && !k) {
				close(fd);
				_exit(0);
			}
			if (i & 1 && !who)
				reap(k);
			close(fd);
			if (!(i & 1) && !who)
				reap(k);
			if (i == WARM) {
				warm[0] = descriptors(getpid());
				warm[1] = descriptors(server);
			}
		}
		int client = descriptors(getpid()), other = descriptors(server);
		if (client > warm[0] + MORE || other > warm[1] + MORE)
			die("client had %d descriptors, has %d; server %d, %d", warm[0], client, warm[1], other);
		kill(server, SIGKILL);
		reap_killed(server);
	}
	return t_ok("fork_descriptors");
}
