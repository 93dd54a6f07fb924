// A worker closes its listener while connects wait at it, as when a server reloads: another process serves them.
#include "t.h"
enum { BULK = 600000 };
static void worker(int l, int ready, int go)
{
	char c;
	struct pollfd p = { l, POLLIN, 0 };
	EQ(poll(&p, 1, -1), 1); // it sees the connect, and leaves it
	EQ(write(ready, "r", 1), 1);
	EQ(read(go, &c, 1), 1);
	close(l);
	EQ(write(ready, "c", 1), 1);
	EQ(read(go, &c, 1), 1); // it lives on, as one with connections to finish
	_exit(0);
}
static pid_t client(int port, int end, int go) // sends at once, or when the worker has quit
{
	pid_t kid = fork_child();
	if (kid)
		return kid;
	char b[8];
	int c = connect_to(port);
	EQ(write(end, "k", 1), 1);
	if (go >= 0)
		EQ(read(go, b, 1), 1);
	if (go < 0) { // more than may be under way: it waits in there when the worker quits
		static unsigned char bulk[BULK];
		pat_fill(bulk, BULK, 0, 3);
		send_all(c, bulk, 500);
		send_all(c, bulk + 500, BULK - 500);
		shutdown(c, SHUT_WR);
	} else {
		send_all(c, "client", 6);
	}
	recv_all(c, b, 6);
	CHECK(!memcmp(b, "answer", 6));
	EQ(recv(c, b, 1, 0), 0);
	_exit(0);
}
int main(void)
{
	t_init();
	for (int i = 0; i < 30; i++) {
		int port, l = listen_on(&port), up[2], down[2], late[2];
		char b[8];
		EQ(pipe(up), 0);
		EQ(pipe(down), 0);
		EQ(pipe(late), 0);
		pid_t kid = fork_child();
		if (!kid)
			worker(l, up[1], down[0]);
		pid_t clients[2] = { client(port, up[1], -1), client(port, up[1], late[0]) };
		for (int k = 0; k < 3; k++)
			EQ(read(up[0], b, 1), 1);
		EQ(write(down[1], "g", 1), 1);
		EQ(read(up[0], b, 1), 1);
		EQ(write(late[1], "l", 1), 1);
		for (int k = 0; k < 2; k++) {
			int s = accept(l, NULL, NULL);
			CHECK(s >= 0);
			recv_all(s, b, 6);
			if (memcmp(b, "client", 6)) {
				static unsigned char bulk[BULK];
				memcpy(bulk, b, 6);
				recv_all(s, bulk + 6, BULK - 6);
				pat_check(bulk, BULK, 0, 3);
			}
			send_all(s, "answer", 6);
			close(s);
		}
		EQ(write(down[1], "e", 1), 1);
		for (int k = 0; k < 2; k++)
			reap(clients[k]);
		reap(kid);
		close(l);
		for (int k = 0; k < 2; k++)
			close(up[k]), close(down[k]), close(late[k]);
	}
	return t_ok("worker_quits");
}
