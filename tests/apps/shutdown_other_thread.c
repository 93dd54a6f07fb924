// shutdown in one thread ends calls of another one: a blocked recv (with 0), poll, epoll_wait, send (with EPIPE), and
// accept on a listener (with EINVAL).
#include "t.h"
#include <sys/syscall.h>
static int p[2], kind, how, err;
static volatile pid_t tid;
static long res;
static unsigned rev;
static char buf[1 << 20];
static void *waiter(void *x)
{
	(void)x;
	struct pollfd pf = { p[0], POLLIN | POLLRDHUP, 0 };
	struct epoll_event ev = { EPOLLIN | EPOLLRDHUP | EPOLLET, { 0 } };
	int ep = epoll_create1(0);
	tid = (pid_t)syscall(SYS_gettid);
	switch (kind) {
	case 0: res = recv(p[0], buf, 16, 0); break;
	case 1: res = poll(&pf, 1, 10000); rev = pf.revents; break;
	case 2: epoll_ctl(ep, EPOLL_CTL_ADD, p[0], &ev); ev.events = 0; res = epoll_wait(ep, &ev, 1, 10000); rev = ev.events; break;
	case 3: while ((res = send(p[0], buf, sizeof buf, MSG_NOSIGNAL)) > 0) {} break;
	default: res = accept(p[0], NULL, NULL); break;
	}
	err = errno;
	close(ep);
	return NULL;
}
int main(void)
{
	t_init();
	for (kind = 0; kind < 5; kind++)
		for (how = SHUT_RD; how <= SHUT_RDWR; how += 2) {
			if (kind == 3 && how == SHUT_RD)
				continue;
			int port;
			pair(p);
			if (kind == 4) {
				close(p[0]);
				p[0] = listen_on(&port);
			}
			pthread_t t;
			tid = 0;
			rev = 0;
			pthread_create(&t, NULL, waiter, NULL);
			while (!tid)
				usleep(100);
			let_it_block(getpid(), tid);
			usleep(3000);
			EQ(shutdown(p[0], how), 0);
			pthread_join(t, NULL);
			errno = err;
			if (kind == 0)
				EQ(res, 0);
			else if (kind <= 2) {
				EQ(res, 1);
				EQ(rev, POLLIN | POLLRDHUP | (how == SHUT_RDWR ? POLLHUP : 0));
			} else if (kind == 3)
				CHECK(res == -1 && err == EPIPE);
			else
				CHECK(res == -1 && err == EINVAL);
			if (kind < 3)
				EQ(recv(p[0], buf, 1, 0), 0);
			if (kind < 3 && how == SHUT_RD) { // the other direction goes on
				send_all(p[0], "abc", 3);
				EQ(recv(p[1], buf, 3, MSG_WAITALL), 3);
			}
			close(p[0]);
			close(p[1]);
		}
	return t_ok("shutdown_other_thread");
}
