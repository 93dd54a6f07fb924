// A connection waits in the queue of a listener when the listening process is killed. Another one has the listener, too,
// and the kernel's queue of it is full: the connection goes on waiting until there is room, or is reset when the last
// process closes the listener.
#include "t.h"
enum { BACKLOG = 3, FILL = BACKLOG + 1 };
static char self[500];
static int plain(char **argv) // has the listener, and is not accelerated
{
	int l, served = 0;
	struct sig s = outsiders(argv, &l);
	tell(s);
	await(s);
	if (!strcmp(getenv("T_ENDS"), "1"))
		return 0;
	for (int i = 0; i < FILL + 1; i++) {
		char c;
		int fd = accept(l, NULL, NULL);
		CHECK(fd >= 0);
		recv_all(fd, &c, 1);
		if (c == 'q') {
			send_all(fd, "a", 1);
			EQ(recv(fd, &c, 1, 0), 0);
			served++;
		}
		close(fd);
	}
	EQ(served, 1);
	return 0;
}
static int filler(int port) // by TCP: holds the places of the queue until it is told otherwise
{
	char c;
	EQ(read(0, &c, 1), 1);
	for (int i = 0; i < FILL; i++)
		send_all(connect_to(port), "f", 1);
	EQ(write(1, "x", 1), 1);
	EQ(read(0, &c, 1), 0);
	return 0;
}
static void server(struct sig up, struct sig s)
{
	int port, l = listen_on(&port);
	EQ(listen(l, BACKLOG), 0);
	EQ(write(up.w, &port, sizeof port), sizeof port);
	pid_t kid = fork_child();
	if (!kid) {
		await(s); // a connection waits
		fcntl(l, F_SETFL, 0);
		go_outside(l, s);
	}
	for (;;)
		pause();
}
static void client(struct sig s, int port, int ends, int polls)
{
	char c, p[20];
	int fd, in[2], out[2];
	EQ(pipe(in), 0);
	EQ(pipe(out), 0);
	pid_t fills = fork_child();
	if (!fills) {
		dup2(in[0], 0);
		dup2(out[1], 1);
		close(in[1]);
		unsetenv("LD_PRELOAD");
		snprintf(p, sizeof p, "%d", port);
		execl(self, self, "fill", p, NULL);
		_exit(9);
	}
	close(in[0]);
	close(out[1]);
	fd = connect_to(port);
	EQ(write(in[1], "x", 1), 1);
	EQ(read(out[0], &c, 1), 1);
	send_all(fd, "q", 1);
	tell(s);
	await(s); // the listening process is dead
	if (polls) {
		for (int i = 0; i < 1500; i++, usleep(1000))
			FAILS(recv(fd, &c, 1, MSG_DONTWAIT), EAGAIN);
	} else {
		struct timeval t = { 1, 500000 };
		EQ(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t), 0);
		FAILS(recv(fd, &c, 1, 0), EAGAIN);
	}
	int ep = epoll_create1(0);
	struct epoll_event e = { .events = EPOLLIN };
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e), 0);
	EQ(epoll_wait(ep, &e, 1, 100), 0);
	tell(s);
	EQ(epoll_wait(ep, &e, 1, 20000 * patience()), 1);
	if (ends) {
		FAILS(recv(fd, &c, 1, 0), ECONNRESET);
	} else {
		EQ(recv(fd, &c, 1, 0), 1);
		EQ(c, 'a');
	}
	close(fd);
	close(in[1]);
	reap(fills);
}
int main(int argc, char **argv)
{
	if (argc > 1 && !strcmp(argv[1], "fill"))
		return filler(atoi(argv[2]));
	if (argc > 1)
		return plain(argv);
	t_init();
	CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
	const char *how = getenv("NETACC_EXPECT");
	if (!how || strcmp(how, "shm"))
		t_skip("redispatch_full", "the connection itself waits in the kernel's queue");
	for (int i = 0; i < 4; i++) {
		struct sig up[2], next[2], cl[2];
		int port, ends = i & 1;
		sigpair(&up[0], &up[1]);
		sigpair(&next[0], &next[1]);
		sigpair(&cl[0], &cl[1]);
		setenv("T_ENDS", ends ? "1" : "0", 1);
		pid_t srv = fork_child();
		if (!srv)
			server(up[1], next[1]);
		EQ(read(up[0].r, &port, sizeof port), sizeof port);
		pid_t kid = fork_child();
		if (!kid) {
			client(cl[1], port, ends, i & 2);
			_exit(0);
		}
		await(cl[0]);
		tell(next[0]);
		await(next[0]); // the plain process runs
		kill(srv, SIGKILL);
		reap_killed(srv);
		tell(cl[0]);
		await(cl[0]); // it has waited for a while
		tell(next[0]);
		reap(kid);
	}
	return t_ok("redispatch_full");
}
