// A connection waits in the queue of a listener when the listening process is killed; another one, which is not
// accelerated (LD_PRELOAD is unset), has the listener by exec and accepts later. The client has two numbers for its
// socket and has written much: no byte is lost, and both numbers work.
#include "t.h"
enum { TOTAL = 250000 };
static unsigned char b[TOTAL];
static int plain(char **argv)
{
	int l;
	struct sig s = outsiders(argv, &l);
	tell(s);
	await(s);
	int fd = accept(l, NULL, NULL);
	CHECK(fd >= 0);
	recv_all(fd, b, TOTAL);
	pat_check(b, TOTAL, 0, 1);
	send_all(fd, "all", 3);
	EQ(recv(fd, b, 10, 0), 0);
	return 0;
}
static void server(struct sig up, struct sig s)
{
	int port, l = listen_on(&port);
	EQ(write(up.w, &port, sizeof port), sizeof port);
	pid_t kid = fork_child();
	if (!kid) {
		fcntl(l, F_SETFL, 0); // as the program wants it, whatever became of it before
		go_outside(l, s);
	}
	for (;;)
		pause();
}
static void client(struct sig s, int port)
{
	int fd = connect_to(port), two = dup(fd), sent = 0;
	CHECK(two >= 0);
	pat_fill(b, TOTAL, 0, 1);
	for (ssize_t r; sent < TOTAL && (r = send(fd, b + sent, TOTAL - 20000 - sent, MSG_DONTWAIT | MSG_NOSIGNAL)) > 0;)
		sent += r;
	tell(s);
	await(s); // the listening process is dead
	usleep(20000);
	char c;
	struct timeval t = { 0, 100000 };
	EQ(setsockopt(two, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t), 0);
	FAILS(recv(two, &c, 1, 0), EAGAIN); // nobody has accepted yet
	t.tv_usec = 0;
	EQ(setsockopt(two, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t), 0);
	tell(s);
	send_all(two, b + sent, TOTAL - sent);
	char got[3];
	recv_all(fd, got, 3);
	CHECK(!memcmp(got, "all", 3));
	close(fd);
	EQ(ready(two, POLLIN, 0), 0); // still open under the other number
	CHECK(!(fcntl(two, F_GETFL) & O_NONBLOCK));
	close(two);
}
int main(int argc, char **argv)
{
	if (argc > 1)
		return plain(argv);
	t_init();
	for (int i = 0; i < 5; i++) {
		struct sig up[2], next[2], cl[2];
		int port;
		sigpair(&up[0], &up[1]);
		sigpair(&next[0], &next[1]);
		sigpair(&cl[0], &cl[1]);
		pid_t srv = fork_child();
		if (!srv)
			server(up[1], next[1]);
		EQ(read(up[0].r, &port, sizeof port), sizeof port);
		await(next[0]); // the plain process runs
		pid_t kid = fork_child();
		if (!kid) {
			client(cl[1], port);
			_exit(0);
		}
		await(cl[0]);
		kill(srv, SIGKILL);
		reap_killed(srv);
		tell(cl[0]);
		await(cl[0]);
		tell(next[0]);
		reap(kid);
		for (int k = 0; k < 2; k++)
			close(up[k].r), close(up[k].w), close(next[k].r), close(next[k].w), close(cl[k].r), close(cl[k].w);
	}
	return t_ok("redispatch_tcp");
}
