// A server with a thread for each connection and a client of another user that has as many: whichever call a thread sleeps in, a
// message wakes the thread that it is for and no other. A child that the server forks in the middle changes nothing.
#include "t.h"
#include <grp.h>
enum { STRANGER = 12345, THREADS = 8, ROUNDS = 300 };
enum { RECV, POLL, EPOLL, KINDS };
static void sleep_for(int fd, int kind)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	if (kind == POLL)
		EQ(poll(&p, 1, -1), 1);
	if (kind == EPOLL) {
		struct epoll_event e = { .events = EPOLLIN };
		int ep = epoll_create1(EPOLL_CLOEXEC);
		CHECK(ep >= 0);
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e), 0);
		EQ(epoll_wait(ep, &e, 1, -1), 1);
		close(ep);
	}
}
struct end {
	int fd, kind, asks;
};
static void *talk(void *arg)
{
	struct end *e = arg;
	for (unsigned i = 0; i < ROUNDS; i++) {
		unsigned got = i;
		if (e->asks)
			send_all(e->fd, &got, sizeof got);
		sleep_for(e->fd, e->kind);
		recv_all(e->fd, &got, sizeof got);
		EQ(got, i);
		if (!e->asks)
			send_all(e->fd, &got, sizeof got);
	}
	return NULL;
}
// Every thread talks at once; returns how often the process went to sleep meanwhile.
static long all_talk(const int *fds, int asks, int forks)
{
	pthread_t t[THREADS];
	struct end e[THREADS];
	struct rusage before, after;
	EQ(getrusage(RUSAGE_SELF, &before), 0);
	for (int i = 0; i < THREADS; i++) {
		e[i] = (struct end){ fds[i], i % KINDS, asks };
		EQ(pthread_create(&t[i], NULL, talk, &e[i]), 0);
	}
	if (forks) {
		pid_t kid = fork_child();
		if (!kid) {
			for (int i = 0; i < THREADS; i++)
				close(fds[i]);
			_exit(0);
		}
		reap(kid);
	}
	for (int i = 0; i < THREADS; i++)
		EQ(pthread_join(t[i], NULL), 0);
	EQ(getrusage(RUSAGE_SELF, &after), 0);
	return after.ru_nvcsw - before.ru_nvcsw;
}
static void client(int port)
{
	int fds[THREADS];
	EQ(setgroups(0, NULL), 0);
	EQ(setgid(STRANGER), 0);
	EQ(setuid(STRANGER), 0);
	for (int i = 0; i < THREADS; i++)
		fds[i] = connect_to(port);
	for (int round = 0; round < 2; round++)
		all_talk(fds, 1, 0);
	_exit(0);
}
int main(void)
{
	t_init();
	if (getuid())
		t_skip("strangers_threads", "only root can be two users");
	int port, l = listen_on(&port), fds[THREADS];
	pid_t kid = fork_child();
	if (!kid) {
		close(l);
		client(port);
	}
	for (int i = 0; i < THREADS; i++) {
		fds[i] = accept(l, NULL, NULL);
		CHECK(fds[i] >= 0);
	}
	// A thread that makes and ends an instance for each message sleeps for locks as well.
	long sleeps = all_talk(fds, 0, 0), messages = THREADS * ROUNDS;
	if (sleeps > 2 * messages)
		die("%ld sleeps for %ld messages", sleeps, messages);
	all_talk(fds, 0, 1);
	reap(kid);
	return t_ok("strangers_threads");
}
