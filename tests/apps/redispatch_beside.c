// A thread waits on a connection in the queue of a listener when that goes to a program which is not accelerated, and the kernel
// answers no SYN for a while. Calls of another thread that do not block return at once all the same, and an event tells of the end of
// that.
#include "t.h"
#include <linux/filter.h>
enum { CALLS = 300 };
static int fd;
static int plain(char **argv) // has the listener, and is not accelerated
{
	int l;
	struct sig s = outsiders(argv, &l);
	tell(s);
	await(s);
	EQ(setsockopt(l, SOL_SOCKET, SO_DETACH_FILTER, &(int){ 0 }, sizeof(int)), 0);
	char c;
	if (!ready(l, POLLIN, 3000))
		return 0;
	int a = accept(l, NULL, NULL);
	CHECK(a >= 0);
	recv_all(a, &c, 1);
	EQ(c, 'q');
	send_all(a, "a", 1);
	EQ(recv(a, &c, 1, 0), 0);
	return 0;
}
static void server(struct sig up, struct sig s)
{
	int port, l = listen_on(&port);
	EQ(write(up.w, &port, sizeof port), sizeof port);
	pid_t kid = fork_child();
	if (!kid) {
		struct sock_filter none = { BPF_RET | BPF_K, 0, 0, 0 };
		struct sock_fprog drops = { 1, &none };
		await(s); // a connection waits
		EQ(setsockopt(l, SOL_SOCKET, SO_ATTACH_FILTER, &drops, sizeof drops), 0);
		fcntl(l, F_SETFL, 0);
		go_outside(l, s);
	}
	for (;;)
		pause();
}
static void *waits(void *tid)
{
	char got;
	*(volatile pid_t *)tid = gettid();
	// a connection whose SYNs are not answered for a second fails, as by TCP it would some time later
	ssize_t n = recv(fd, &got, 1, 0);
	CHECK(n == 1 ? got == 'a' : errno == ECONNRESET);
	return NULL;
}
int main(int argc, char **argv)
{
	if (argc > 1)
		return plain(argv);
	t_init();
	struct sig up[2], next[2];
	int port;
	volatile pid_t tid = 0;
	pthread_t t;
	sigpair(&up[0], &up[1]);
	sigpair(&next[0], &next[1]);
	pid_t srv = fork_child();
	if (!srv)
		server(up[1], next[1]);
	EQ(read(up[0].r, &port, sizeof port), sizeof port);
	fd = connect_to(port);
	send_all(fd, "q", 1);
	int ep = epoll_create1(0);
	struct epoll_event ev = { EPOLLIN | EPOLLOUT | EPOLLET, { 0 } };
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev), 0);
	EQ(epoll_wait(ep, &ev, 1, 0), 1);
	EQ(epoll_wait(ep, &ev, 1, 0), 0);
	EQ(pthread_create(&t, NULL, waits, (void *)&tid), 0);
	while (!tid)
		usleep(100);
	let_it_block(getpid(), tid);
	tell(next[0]);
	await(next[0]);
	kill(srv, SIGKILL);
	reap_killed(srv);
	usleep(100000); // the thread that waits connects by TCP
	double longest = 0;
	char c;
	for (int i = 0; i < CALLS; i++, usleep(1000)) {
		double begun = now();
		FAILS(recv(fd, &c, 1, MSG_DONTWAIT), EAGAIN);
		ssize_t n = send(fd, "", 0, MSG_DONTWAIT);
		CHECK(n == 0 || errno == EAGAIN);
		longest = now() - begun > longest ? now() - begun : longest;
	}
	if (longest > 0.3 * patience())
		die("a call that does not block has taken %.3f s", longest);
	tell(next[0]);
	EQ(epoll_wait(ep, &ev, 1, 20000), 1);
	pthread_join(t, NULL);
	close(fd), close(ep);
	return t_ok("redispatch_beside");
}
