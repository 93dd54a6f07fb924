// Parent and child use one connection alternately (pipes keep the order): the peer sees one stream, and its end only
// after both have closed.
#include "t.h"
enum { TURNS = 200 };
int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	for (int who = 0; who < 2; who++) { // whether the accepting or the connecting side forks
		pid_t peer = fork_child();
		if (!peer) {
			int fd = who ? accept(l, NULL, NULL) : connect_to(port);
			unsigned i = 0, v;
			ssize_t r;
			while ((r = recv(fd, &v, 4, MSG_WAITALL)) == 4) {
				EQ(v, i);
				i++;
				v += 1000;
				send_all(fd, &v, 4);
			}
			EQ(r, 0);
			EQ(i, 2 * TURNS + 1);
			_exit(0);
		}
		int fd = who ? connect_to(port) : accept(l, NULL, NULL);
		unsigned v = 0;
		send_all(fd, &v, 4); // the connection is in use before the fork
		recv_all(fd, &v, 4);
		EQ(v, 1000);
		struct sig a, b;
		sigpair(&a, &b);
		pid_t kid = fork_child();
		struct sig me = kid ? a : b;
		for (unsigned i = 0; i < TURNS; i++) {
			if (!(kid && i == 0))
				await(me);
			unsigned w = 1 + 2 * i + !kid;
			send_all(fd, &w, 4);
			recv_all(fd, &v, 4);
			EQ(v, w + 1000);
			tell(me);
		}
		if (!kid)
			_exit(0);
		reap(kid);
		EQ(recv(fd, &v, 4, MSG_DONTWAIT), -1); // still open here
		close(fd);
		reap(peer);
	}
	return t_ok("fork_turns");
}
