// A client that is not accelerated (LD_PRELOAD is unset) closes with unread bytes while the server's write waits: the
// write returns the number of bytes that it has written, and the next call reports the reset.
#include "t.h"
enum { SIZE = 16 << 20 };
static char block[SIZE];
static int plain(char **argv)
{
	int port;
	struct sig s = outsiders(argv, &port);
	int fd = connect_to(port);
	char c;
	recv_all(fd, &c, 1);
	await(s);
	close(fd);
	return 0;
}
int main(int argc, char **argv)
{
	if (argc > 1)
		return plain(argv);
	t_init();
	for (int i = 0; i < 2; i++) {
		int port, l = listen_on(&port);
		struct sig ours, theirs;
		sigpair(&ours, &theirs);
		pid_t kid = fork_child(), closer;
		if (!kid)
			go_outside(port, theirs);
		int fd = accept(l, NULL, NULL);
		CHECK(fd >= 0);
		pid_t me = getpid();
		closer = fork_child();
		if (!closer) {
			let_it_block(me, me);
			tell(ours);
			_exit(0);
		}
		ssize_t sent = i ? write(fd, block, SIZE) : send(fd, block, SIZE, 0);
		CHECK(sent > 0 && sent < SIZE);
		FAILS(send(fd, block, 1, MSG_NOSIGNAL), ECONNRESET);
		FAILS(send(fd, block, 1, MSG_NOSIGNAL), EPIPE);
		reap(closer);
		reap(kid);
		close(fd);
		close(l);
	}
	return t_ok("reset_in_write");
}
