// A process forks between its connect and the server's accept: whichever of the two goes on alone has the connection.
#include "t.h"
int main(void)
{
	t_init();
	int port, told[2];
	EQ(pipe(told), 0);
	pid_t server = fork_child();
	if (!server) {
		// The listener is this process' alone, so that all connections go over one link.
		int l = listen_on(&port);
		EQ(write(told[1], &port, sizeof port), sizeof port);
		// The server sleeps in the first instance, and gets its events there, before it uses the next one.
		int first = accept(l, NULL, NULL);
		for (int i = 0; i < 8; i++) {
			char c[3];
			recv_all(first, c, 1);
			int fd = accept(l, NULL, NULL);
			CHECK(fd >= 0);
			recv_all(fd, c, 3);
			CHECK(!memcmp(c, "abc", 3));
			send_all(fd, "def", 3);
			EQ(recv(fd, c, 1, 0), 0);
			close(fd);
		}
		_exit(0);
	}
	EQ(read(told[0], &port, sizeof port), sizeof port);
	int first = connect_to(port);
	for (int i = 0; i < 8; i++) {
		char c[3];
		int fd = connect_to(port), in_child = i & 1;
		if (i & 2)
			send_all(fd, "a", 1);
		pid_t k = fork_child();
		if (!!k == in_child) { // the other one closes
			close(fd);
		} else {
			send_all(fd, i & 2 ? "bc" : "abc", i & 2 ? 2 : 3);
			usleep(5000); // the server sleeps again, and has heard of the fork
			if (i & 4) // in time or too late for the server
				send_all(first, "!", 1);
			EQ(shutdown(fd, SHUT_WR), 0);
			if (!(i & 4))
				send_all(first, "!", 1);
			recv_all(fd, c, 3);
			CHECK(!memcmp(c, "def", 3));
			EQ(recv(fd, c, 1, 0), 0);
			close(fd);
		}
		if (!k)
			_exit(0);
		reap(k);
	}
	reap(server);
	return t_ok("fork_untaken");
}
