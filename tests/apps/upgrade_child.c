// A child has its parent's listener, or has closed it, and does not accept there; it connects to it, and waits for its connections in one of several
// ways. An operator has the library of the child replaced, or switches it off and on, while the parent sends on and on. Each
// connect is accepted by the parent, the parent's listener stays accelerated, and epoll_wait gives no value but the program's.
#include "ctl.h"
enum { N = 4, ROUNDS = 8, BEFORE = 20, AFTER = 5 };
enum way { EPOLL, EPOLL_BEFORE, POLL, BLOCKING, WAYS };
static const char *NAMES[] = { "epoll", "an epoll instance of the parent's", "poll", "blocking" };
static enum way way;
static int l, port, ep, without_listener;
static struct sig here, there;
static volatile int stop;
// Echoes what comes on connection `i` of `fd`; false at its end.
static int echo(int *fd, int i)
{
	char b[64];
	ssize_t n = recv(fd[i], b, sizeof b, way == BLOCKING ? 0 : MSG_DONTWAIT);
	if (n > 0)
		send_all(fd[i], b, (size_t)n);
	else if (n < 0)
		EQ(errno, EAGAIN);
	else
		close(fd[i]), fd[i] = -1;
	return n != 0;
}
static void by_epoll(int *fd, int round)
{
	for (int i = 0; i < N; i++) {
		struct epoll_event e = { EPOLLIN, { .u64 = 1000 + 10 * round + i } };
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd[i], &e), 0);
	}
	for (int ends = 0; ends < N;) {
		struct epoll_event got[N];
		int n = epoll_wait(ep, got, N, 20000);
		if (n <= 0)
			die("epoll_wait gives %d after %d ends", n, ends);
		for (int k = 0; k < n; k++) {
			uint64_t i = got[k].data.u64 - 1000 - 10 * round;
			if (i >= N)
				die("an event %x with the value %llx in round %d", got[k].events, (unsigned long long)got[k].data.u64, round);
			ends += !echo(fd, (int)i);
		}
	}
}
static void by_poll(int *fd)
{
	for (int ends = 0; ends < N;) {
		struct pollfd p[N];
		for (int i = 0; i < N; i++)
			p[i] = (struct pollfd){ fd[i], POLLIN, 0 };
		CHECK(poll(p, N, 20000) > 0);
		for (int i = 0; i < N; i++)
			if (p[i].revents)
				ends += !echo(fd, i);
	}
}
static void *by_blocking(void *x)
{
	while (echo(x, 0))
		;
	return NULL;
}
static void child(void)
{
	if (without_listener)
		close(l);
	if (way != EPOLL_BEFORE)
		ep = epoll_create1(0);
	for (int round = 0; round < ROUNDS; round++) {
		int fd[N];
		pthread_t t[N];
		await(there);
		for (int i = 0; i < N; i++)
			fd[i] = connect_to(port);
		if (way <= EPOLL_BEFORE)
			by_epoll(fd, round);
		else if (way == POLL)
			by_poll(fd);
		else {
			for (int i = 0; i < N; i++)
				CHECK(!pthread_create(&t[i], NULL, by_blocking, &fd[i]));
			for (int i = 0; i < N; i++)
				pthread_join(t[i], NULL);
		}
		tell(there);
	}
	await(there);
	_exit(0);
}
static void talk(int *s, int times)
{
	char c;
	for (int k = 0; k < times; k++)
		for (int i = 0; i < N; i++) {
			send_all(s[i], "x", 1);
			recv_all(s[i], &c, 1);
		}
}
// Sends without waiting for answers, and takes all of them in the end.
static void *talker(void *x)
{
	int *s = x;
	char b[64];
	long n, sent[N] = { 0 }, back[N] = { 0 };
	do {
		for (int i = 0; i < N; i++) {
			if (sent[i] - back[i] < 1000) {
				send_all(s[i], "y", 1);
				sent[i]++;
			}
			for (; (n = recv(s[i], b, sizeof b, MSG_DONTWAIT)) > 0;)
				back[i] += n;
		}
		usleep(50);
	} while (!stop);
	for (int i = 0; i < N; i++)
		for (; back[i] < sent[i]; back[i] += n)
			CHECK((n = recv(s[i], b, sizeof b, 0)) > 0);
	return NULL;
}
static void once(const char *action)
{
	int s[N];
	pthread_t t;
	l = listen_on(&port);
	if (way == EPOLL_BEFORE) {
		struct epoll_event e = { EPOLLIN, { .u64 = 7 } };
		ep = epoll_create1(0);
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, l, &e), 0);
		EQ(epoll_ctl(ep, EPOLL_CTL_DEL, l, NULL), 0);
	}
	sigpair(&here, &there);
	pid_t kid = fork_child();
	if (!kid)
		child();
	for (int round = 0; round < ROUNDS; round++) {
		tell(here);
		for (int i = 0; i < N; i++)
			CHECK((s[i] = accept(l, NULL, NULL)) >= 0);
		talk(s, BEFORE);
		stop = 0;
		CHECK(!pthread_create(&t, NULL, talker, s));
		if (has_ctl())
			ctl_call(strcmp(action, "upgrade") ? round % 2 ? "on" : "off" : action, kid, 0.2, 0);
		stop = 1;
		pthread_join(t, NULL);
		talk(s, AFTER);
		for (int i = 0; i < N; i++)
			close(s[i]);
		await(here);
	}
	// The listener is still the parent's.
	int c = connect_to(port);
	CHECK((s[0] = accept(l, NULL, NULL)) >= 0);
	expect_shm(s[0]);
	close(c);
	close(s[0]);
	tell(here);
	reap(kid);
	close(l);
	if (way == EPOLL_BEFORE)
		close(ep);
}
int main(void)
{
	t_init();
	for (way = 0; way < WAYS; way++) {
		fprintf(stderr, "%s\n", NAMES[way]);
		once("upgrade");
		once("off and on");
	}
	way = EPOLL;
	without_listener = 1;
	for (int i = 0; i < 4; i++)
		once("upgrade");
	return t_ok("upgrade_child");
}
