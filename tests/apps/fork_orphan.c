// A server's child has the connection, the server is killed, and the child is silent for a while: the client sleeps
// meanwhile in every call that waits, and then gets the child's bytes.
#include "t.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
static double cpu(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}
int main(void)
{
	t_init();
	enum { RECV, POLL, SELECT, EPOLL, EDGE, CALLS };
	int port, l = listen_on(&port);
	for (int call = 0; call < CALLS; call++) {
		char b;
		pid_t server = fork_child();
		if (!server) {
			int s = accept(l, NULL, NULL);
			CHECK(s >= 0);
			recv_all(s, &b, 1);
			send_all(s, &b, 1);
			if (!fork_child()) {
				recv_all(s, &b, 1);
				send_all(s, &b, 1);
				usleep(300000); // what the client has to sleep through
				send_all(s, &b, 1);
				_exit(0);
			}
			pause();
		}
		int fd = connect_to(port);
		send_all(fd, "a", 1);
		recv_all(fd, &b, 1);
		send_all(fd, "b", 1);
		recv_all(fd, &b, 1); // so the child is there
		EQ(kill(server, SIGKILL), 0);
		reap_killed(server);
		double at = now(), used = cpu();
		struct pollfd p = { .fd = fd, .events = POLLIN };
		struct epoll_event e = { .events = EPOLLIN | (call == EDGE ? EPOLLET : 0) };
		fd_set set;
		int ep = -1;
		switch (call) {
		case POLL:
			EQ(poll(&p, 1, -1), 1);
			break;
		case SELECT:
			FD_ZERO(&set);
			FD_SET(fd, &set);
			EQ(select(fd + 1, &set, NULL, NULL, NULL), 1);
			break;
		case EPOLL:
		case EDGE:
			ep = epoll_create1(0);
			EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e), 0);
			EQ(epoll_wait(ep, &e, 1, -1), 1);
			break;
		}
		recv_all(fd, &b, 1);
		used = cpu() - used;
		at = now() - at;
		if (used > at / 3)
			die("call %d: %.3f of %.3f s at work", call, used, at);
		EQ(recv(fd, &b, 1, 0), 0);
		close(fd);
		close(ep);
	}
	return t_ok("fork_orphan");
}
