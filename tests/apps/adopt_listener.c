// Listeners that a program did not make, because it inherited them over exec (one or two servers at a time) or received
// them by SCM_RIGHTS, are served with each kind of wait, and accelerated from the first wait on.
#include "t.h"
#include <sys/epoll.h>
#include <sys/select.h>
static char self[500];
static void wait_for(int l, int how, int ms)
{
	struct pollfd p = { l, POLLIN, 0 };
	struct epoll_event ev = { EPOLLIN, { .fd = l } };
	fd_set set;
	struct timeval none = { 0, 0 };
	static int e = -1;
	switch (how) {
	case 1:
		poll(&p, 1, ms);
		break;
	case 2:
		if (e < 0) {
			e = epoll_create1(EPOLL_CLOEXEC);
			EQ(epoll_ctl(e, EPOLL_CTL_ADD, l, &ev), 0);
		}
		epoll_wait(e, &ev, 1, ms);
		break;
	case 3:
		FD_ZERO(&set);
		FD_SET(l, &set);
		select(l + 1, &set, NULL, NULL, ms ? NULL : &none);
		break;
	}
}
static int serve(int l, int how, int ready) // until somebody sends 'q'
{
	if (how == 0) { // accept alone: it waits without blocking once
		fcntl(l, F_SETFL, O_RDWR | O_NONBLOCK);
		EQ(accept(l, NULL, NULL), -1);
		EQ(errno, EAGAIN);
		fcntl(l, F_SETFL, O_RDWR);
	} else {
		wait_for(l, how == 4 ? 1 : how, 0);
	}
	EQ(write(ready, "r", 1), 1);
	char c = 0;
	for (int n = 0; c != 'q'; n++) {
		wait_for(l, how == 4 ? 1 : how, -1);
		int s = accept(l, NULL, NULL);
		if (s < 0 && errno == EAGAIN) // another server was faster
			continue;
		CHECK(s >= 0);
		if (n % 10 == 0) // it takes a while
			expect_shm(s);
		recv_all(s, &c, 1);
		pid_t me = getpid();
		send_all(s, &me, sizeof me);
		close(s);
	}
	return 0;
}
static pid_t ask(int port, char what)
{
	pid_t who;
	int c = connect_to(port);
	send_all(c, &what, 1);
	recv_all(c, &who, sizeof who);
	EQ(recv(c, &what, 1, 0), 0);
	close(c);
	return who;
}
static void serves_alone(int port, pid_t kid) // and then ends
{
	for (int i = 0; i < 20; i++)
		EQ(ask(port, 'x'), kid);
	EQ(ask(port, 'q'), kid);
	reap(kid);
}
static pid_t start(int l, int how, int ready)
{
	pid_t kid = fork_child();
	if (!kid) {
		char a[3][12], *av[] = { self, "serve", a[0], a[1], a[2], NULL };
		sprintf(a[0], "%d", l);
		sprintf(a[1], "%d", how);
		sprintf(a[2], "%d", ready);
		execv(self, av);
		_exit(9);
	}
	return kid;
}
int main(int argc, char **argv)
{
	t_init();
	if (argc > 4 && !strcmp(argv[1], "serve"))
		return serve(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]));
	CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
	int ready[2];
	char b;
	EQ(pipe(ready), 0);
	for (int how = 0; how < 4; how++) { // one server
		int port, l = listen_on(&port);
		pid_t kid = start(l, how, ready[1]);
		close(l);
		EQ(read(ready[0], &b, 1), 1);
		serves_alone(port, kid);
	}
	for (int turn = 0; turn < 3; turn++) { // two, of which one ends first
		int port, l = listen_on(&port);
		fcntl(l, F_SETFL, O_RDWR | O_NONBLOCK);
		pid_t kid[2] = { start(l, 4, ready[1]), start(l, 4, ready[1]) };
		close(l);
		for (int i = 0; i < 2; i++)
			EQ(read(ready[0], &b, 1), 1);
		for (int i = 0; i < 40; i++) {
			pid_t who = ask(port, 'x');
			CHECK(who == kid[0] || who == kid[1]);
		}
		pid_t first = ask(port, 'q');
		reap(first);
		pid_t other = first == kid[0] ? kid[1] : kid[0];
		serves_alone(port, other);
	}
	for (int how = 0; how < 4; how++) { // passed
		int u[2], port, l = listen_on(&port);
		EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, u), 0);
		pid_t kid = fork_child();
		if (!kid) {
			close(l);
			_exit(serve(take_fd(u[1]), how, ready[1]));
		}
		pass_fd(u[0], l);
		close(l);
		EQ(read(ready[0], &b, 1), 1);
		serves_alone(port, kid);
		close(u[0]);
		close(u[1]);
	}
	return t_ok("adopt_listener");
}
