// The parent keeps a connection while children come and go without using it (by exit, _exit, a signal or exec), and the
// peer notices nothing.
#include "t.h"
int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	pid_t peer = fork_child();
	if (!peer) {
		int fd = connect_to(port);
		char b[64];
		ssize_t r;
		int n = 0;
		while ((r = recv(fd, b, sizeof b, 0)) > 0) {
			send_all(fd, b, r);
			n += r;
		}
		EQ(r, 0);
		EQ(n, 5 * 30 * 4);
		_exit(0);
	}
	int fd = accept(l, NULL, NULL);
	char b[8];
	close(l);
	for (int round = 0; round < 30; round++)
		for (int how = 0; how < 5; how++) {
			pid_t kid = fork();
			if (!kid) {
				alarm(t_limit());
				switch (how) {
				case 0: _exit(0);
				case 1: fclose(stdout); exit(0);
				case 2: kill(getpid(), SIGKILL); break;
				case 3: execl("/bin/true", "true", NULL); break;
				default: close(fd); _exit(0);
				}
				_exit(7);
			}
			int st;
			EQ(waitpid(kid, &st, 0), kid);
			CHECK(how == 2 ? WIFSIGNALED(st) : st == 0);
			EQ(recv(fd, b, 1, MSG_DONTWAIT), -1);
			EQ(errno, EAGAIN);
			send_all(fd, "ping", 4);
			recv_all(fd, b, 4);
			CHECK(!memcmp(b, "ping", 4));
		}
	close(fd);
	reap(peer);
	return t_ok("fork_keep");
}
