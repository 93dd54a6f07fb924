// 4 workers accept on an inherited listener, and one of them is killed meanwhile: all of 200 connections are served. It
// runs once with blocking accept, and once with a non-blocking listener in epoll (all workers are woken, one gets the
// connection).
#include "t.h"
enum { W = 4, C = 200 };
static void serve(int fd)
{
	char b[32];
	ssize_t r;
	pid_t me = getpid();
	while ((r = recv(fd, b, sizeof b, 0)) > 0)
		send_all(fd, &me, sizeof me);
	close(fd);
}
int main(void)
{
	t_init();
	for (int mode = 0; mode < 2; mode++) {
		int port, l = listen_on(&port);
		pid_t w[W];
		if (mode)
			nonblock(l);
		for (int i = 0; i < W; i++) {
			w[i] = fork_child();
			if (w[i])
				continue;
			int ep = epoll_create1(0);
			struct epoll_event e = { EPOLLIN | EPOLLEXCLUSIVE, { 0 } };
			EQ(epoll_ctl(ep, EPOLL_CTL_ADD, l, &e), 0);
			for (;;) {
				if (mode)
					epoll_wait(ep, &e, 1, 100); // a wake-up by EPOLLEXCLUSIVE is lost with a worker killed before its accept
				int fd = accept(l, NULL, NULL);
				if (fd < 0 && mode && errno == EAGAIN)
					continue;
				CHECK(fd >= 0);
				serve(fd);
			}
		}
		close(l); // only the workers hold it
		int used[W] = { 0 }, again = 0;
		for (int i = 0; i < C; i++) {
			if (i == C / 2)
				kill(w[1], SIGKILL);
			if (i == C / 2 + 1)
				reap_killed(w[1]);
			int fd = connect_to(port);
			pid_t got = 0;
			ssize_t r = send(fd, "hello", 5, MSG_NOSIGNAL);
			if (r == 5)
				r = recv(fd, &got, sizeof got, MSG_WAITALL);
			if (r != sizeof got) { // the killed worker may have had just this one
				if (i != C / 2 || again++)
					die("connection %d was not served: %zd", i, r);
				i--;
				close(fd);
				continue;
			}
			int k = 0;
			while (k < W && w[k] != got)
				k++;
			if (k == W || (k == 1 && i > C / 2))
				die("served by %d", (int)got);
			used[k]++;
			close(fd);
		}
		EQ(used[0] + used[1] + used[2] + used[3], C);
		// many at once: each waiting connection finds a worker
		int fd[3];
		for (int i = 0; i < 3; i++) {
			fd[i] = connect_to(port);
			send_all(fd[i], "x", 1);
		}
		for (int i = 0; i < 3; i++) {
			pid_t got;
			recv_all(fd[i], &got, sizeof got);
			close(fd[i]);
		}
		for (int i = 0; i < W; i++)
			if (i != 1) {
				kill(w[i], SIGKILL);
				reap_killed(w[i]);
			}
		struct sockaddr_in a = addr4(port);
		int s = socket(AF_INET, SOCK_STREAM, 0);
		FAILS(connect(s, (struct sockaddr *)&a, sizeof a), ECONNREFUSED); // the last holder is gone
		close(s);
	}
	return t_ok("prefork");
}
