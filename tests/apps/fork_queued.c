// Connects wait at a listener when its process forks, and the child accepts: those of the process itself, also while a thread
// sleeps on one, and those of another process that makes no call before it is answered. All bytes are there, in order.
#include "t.h"
enum { N = 3, BULK = 100000 };
static unsigned char bulk[BULK];
static void answer(int l, int i) // the i-th connect
{
	char b[4];
	CHECK(ready(l, POLLIN, 10000) & POLLIN);
	int s = accept(l, NULL, NULL);
	CHECK(s >= 0);
	recv_all(s, b, 1);
	EQ(b[0], '0' + i);
	if (i == 1) {
		recv_all(s, bulk, BULK);
		pat_check(bulk, BULK, 0, 7);
	}
	send_all(s, b, 1);
	close(s);
}
static void ask(int c, int i)
{
	char b = '0' + i;
	send_all(c, &b, 1);
	if (i == 1) {
		pat_fill(bulk, BULK, 0, 7);
		send_all(c, bulk, BULK);
	}
}
static void answered(int c, int i)
{
	char b[2];
	EQ(recv(c, b, 2, MSG_WAITALL), 1);
	EQ(b[0], '0' + i);
	close(c);
}
static int asleep[2];
static void *sleeps(void *c)
{
	struct pollfd p = { *(int *)c, POLLIN, 0 };
	EQ(write(asleep[1], "s", 1), 1);
	EQ(poll(&p, 1, 10000), 1);
	return NULL;
}
static void accept_one(int l, int port)
{
	int c = connect_to(port);
	ask(c, 0);
	answer(l, 0);
	answered(c, 0);
}
static void fork_once(void)
{
	pid_t kid = fork_child();
	if (!kid)
		_exit(0);
	reap(kid);
}
enum { ACCEPTED = 1, FORKED = 2, ASLEEP = 4 };
static void own(int how)
{
	int port, l = listen_on(&port), c[N];
	char b;
	pthread_t t;
	if (how & ACCEPTED)
		accept_one(l, port);
	if (how & FORKED)
		fork_once();
	for (int i = 0; i < N; i++) {
		c[i] = connect_to(port);
		ask(c[i], i);
	}
	if (how & ASLEEP) {
		EQ(pipe(asleep), 0);
		EQ(pthread_create(&t, NULL, sleeps, &c[0]), 0);
		EQ(read(asleep[0], &b, 1), 1);
		usleep(50000);
	}
	pid_t kid = fork_child();
	if (!kid) {
		for (int i = 0; i < N; i++)
			close(c[i]);
		for (int i = 0; i < N; i++)
			answer(l, i);
		_exit(0);
	}
	if (how & ASLEEP)
		pthread_join(t, NULL);
	for (int i = 0; i < N; i++)
		answered(c[i], i);
	reap(kid);
	close(l);
}
static void of_another(int how, int child_leaves)
{
	int port, l = listen_on(&port), up[2], down[2], c[N];
	char b;
	EQ(pipe(up), 0);
	EQ(pipe(down), 0);
	pid_t client = fork_child();
	if (!client) {
		close(l);
		if (how & ACCEPTED) {
			c[0] = connect_to(port);
			ask(c[0], 0);
			answered(c[0], 0);
		}
		EQ(read(down[0], &b, 1), 1);
		for (int i = 0; i < N; i++) {
			c[i] = connect_to(port);
			ask(c[i], i);
		}
		EQ(write(up[1], "q", 1), 1);
		EQ(read(down[0], &b, 1), 1);
		for (int i = 0; i < N; i++)
			answered(c[i], i);
		_exit(0);
	}
	if (how & ACCEPTED)
		answer(l, 0);
	if (how & FORKED)
		fork_once();
	EQ(write(down[1], "c", 1), 1);
	CHECK(ready(l, POLLIN, 10000) & POLLIN);
	EQ(read(up[0], &b, 1), 1);
	CHECK(ready(l, POLLIN, 0) & POLLIN);
	pid_t kid = fork_child();
	for (int i = 0; i < N && !kid == !child_leaves; i++)
		answer(l, i);
	if (!kid)
		_exit(0);
	reap(kid);
	EQ(write(down[1], "a", 1), 1);
	reap(client);
	close(l);
	for (int i = 0; i < 2; i++)
		close(up[i]), close(down[i]);
}
// The client has closed its end, or its process has ended, before the fork.
static void of_one_that_left(int own, int how)
{
	int port, l = listen_on(&port), c;
	char b;
	if (how & ACCEPTED)
		accept_one(l, port);
	if (how & FORKED)
		fork_once();
	if (own) {
		c = connect_to(port);
		ask(c, 1);
		close(c);
	} else {
		pid_t client = fork_child();
		if (!client) {
			c = connect_to(port);
			ask(c, 1);
			_exit(0);
		}
		CHECK(ready(l, POLLIN, 10000) & POLLIN);
		reap(client);
	}
	pid_t kid = fork_child();
	if (!kid) {
		CHECK(ready(l, POLLIN, 10000) & POLLIN);
		int s = accept(l, NULL, NULL);
		recv_all(s, &b, 1);
		EQ(b, '1');
		recv_all(s, bulk, BULK);
		pat_check(bulk, BULK, 0, 7);
		EQ(recv(s, &b, 1, 0), 0);
		_exit(0);
	}
	reap(kid);
	close(l);
}
int main(void)
{
	t_init();
	for (int how = 0; how < 8; how++)
		own(how);
	for (int how = 0; how < 4 && !by_network(); how++) {
		of_one_that_left(1, how);
		of_one_that_left(0, how);
	}
	if (!by_network()) // an engine makes the connect of a client on another host
		for (int leaves = 0; leaves < 2; leaves++) {
			of_another(0, leaves);
			of_another(ACCEPTED, leaves);
			of_another(FORKED, leaves);
			of_another(FORKED | ACCEPTED, leaves);
		}
	return t_ok("fork_queued");
}
