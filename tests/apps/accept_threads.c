// 4 threads in accept on one listener and 3 threads in epoll_wait on one epoll instance (EPOLLEXCLUSIVE, EPOLLET) serve
// every connection exactly once.
#include "t.h"
enum { C = 300 };
static int l, ep, served;
static void *acceptor(void *x)
{
	(void)x;
	for (;;) {
		int fd = accept(l, NULL, NULL);
		char c;
		if (fd < 0) {
			EQ(errno, EINVAL); // the listener was shut down
			return NULL;
		}
		while (recv(fd, &c, 1, 0) == 1)
			send_all(fd, &c, 1);
		__atomic_add_fetch(&served, 1, __ATOMIC_SEQ_CST);
		close(fd);
	}
}
static void *looper(void *x)
{
	(void)x;
	struct epoll_event ev[4];
	while (__atomic_load_n(&served, __ATOMIC_SEQ_CST) < C) {
		int n = epoll_wait(ep, ev, 4, 20);
		for (int i = 0; i < n; i++) {
			int fd = ev[i].data.fd;
			char b[16];
			if (fd == l) {
				while ((fd = accept4(l, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
					struct epoll_event e = { EPOLLIN | EPOLLRDHUP | EPOLLET, { .fd = fd } };
					EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e), 0);
				}
				EQ(errno, EAGAIN);
				continue;
			}
			// two threads can be here for one socket (ET without one-shot); only one sees the end marked by 'q'
			ssize_t r;
			while ((r = recv(fd, b, 1, 0)) == 1) {
				send_all(fd, b, 1);
				if (b[0] == 'q')
					__atomic_add_fetch(&served, 1, __ATOMIC_SEQ_CST);
			}
		}
	}
	return NULL;
}
static void clients(int port)
{
	for (int i = 0; i < C; i += 10) {
		int fd[10];
		char c;
		for (int k = 0; k < 10; k++) {
			fd[k] = connect_to(port);
			send_all(fd[k], "a", 1);
		}
		for (int k = 0; k < 4; k++) { // at least as many as can be served at once
			recv_all(fd[k], &c, 1);
			send_all(fd[k], "q", 1);
			recv_all(fd[k], &c, 1);
			close(fd[k]);
		}
		for (int k = 4; k < 10; k++) {
			recv_all(fd[k], &c, 1);
			EQ(c, 'a');
			send_all(fd[k], "q", 1);
			recv_all(fd[k], &c, 1);
			EQ(c, 'q');
			close(fd[k]);
		}
	}
	_exit(0);
}
int main(void)
{
	t_init();
	int port;
	pthread_t t[4];
	for (int mode = 0; mode < 3; mode++) {
		l = listen_on(&port);
		served = 0;
		pid_t kid = fork_child();
		if (!kid)
			clients(port);
		if (mode == 0) {
			for (int i = 0; i < 4; i++)
				pthread_create(&t[i], NULL, acceptor, NULL);
			reap(kid);
			EQ(shutdown(l, SHUT_RD), 0);
		} else {
			nonblock(l);
			ep = epoll_create1(0);
			struct epoll_event e = { mode == 1 ? EPOLLIN | EPOLLEXCLUSIVE : EPOLLIN | EPOLLET, { .fd = l } };
			EQ(epoll_ctl(ep, EPOLL_CTL_ADD, l, &e), 0);
			for (int i = 0; i < 4; i++)
				pthread_create(&t[i], NULL, looper, NULL);
			reap(kid);
		}
		for (int i = 0; i < 4; i++)
			pthread_join(t[i], NULL);
		EQ(served, C);
		close(l);
		if (mode)
			close(ep);
	}
	return t_ok("accept_threads");
}
