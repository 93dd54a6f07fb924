// A child has a connection alone after its parent has closed it. Its threads wait for it in an epoll instance, in two
// more of them, and in poll(2): each is woken for what comes, for what another thread does, and after the process has
// forked again and its child waits for the same connection.
#include "t.h"
#include <stdatomic.h>
enum { ROUNDS = 60, WAITERS = 4 };
static int fd;
static atomic_int stage; // the round that the waiters may see
static atomic_int seen[WAITERS];
static pthread_barrier_t begun;

static void *waiter(void *arg)
{
	int me = (int)(intptr_t)arg, ep = epoll_create1(0);
	struct epoll_event ev = { .events = EPOLLIN | EPOLLRDHUP };
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev), 0);
	pthread_barrier_wait(&begun);
	for (int round = 1; round <= ROUNDS + 2; round++) {
		struct pollfd p = { fd, POLLIN | POLLRDHUP, 0 };
		if (me < WAITERS - 1)
			EQ(epoll_wait(ep, &ev, 1, -1), 1);
		else
			EQ(poll(&p, 1, -1), 1);
		CHECK(stage == round);
		seen[me] = round;
		while (stage == round)
			usleep(100);
		while (stage == -round) // until the byte was read
			usleep(100);
	}
	return NULL;
}

// All waiters have to see what has come, the second and third instance at their next step.
static void all_saw(int round)
{
	double begin = now();
	for (int i = 0; i < WAITERS; i++)
		while (seen[i] != round) {
			if (now() - begin > 20 * patience())
				die("waiter %d has not seen round %d", i, round);
			usleep(100);
		}
}

static void serve(void)
{
	pthread_t t[WAITERS];
	char b;
	// Each waiter is alone at first with the connection: the parent has closed it.
	pthread_barrier_init(&begun, NULL, WAITERS + 1);
	for (long i = 0; i < WAITERS; i++)
		EQ(pthread_create(&t[i], NULL, waiter, (void *)i), 0);
	pthread_barrier_wait(&begun);
	for (int round = 1; round <= ROUNDS; round++) {
		stage = round;
		usleep(round % 4 * 500); // asleep or still awake
		send_all(fd, "r", 1); // asks for a byte
		all_saw(round);
		stage = -round;
		recv_all(fd, &b, 1);
		stage = round + 1;
	}
	// Another process comes, which waits for the connection and reads nothing.
	usleep(20000);
	struct sig a, k;
	sigpair(&a, &k);
	pid_t kid = fork_child();
	if (!kid) {
		struct pollfd p = { fd, POLLIN, 0 };
		tell(k);
		EQ(poll(&p, 1, -1), 1);
		tell(k); // before anybody reads it
		await(k);
		_exit(0);
	}
	await(a);
	usleep(20000);
	send_all(fd, "r", 1);
	all_saw(ROUNDS + 1);
	await(a);
	stage = -(ROUNDS + 1);
	recv_all(fd, &b, 1);
	stage = ROUNDS + 2;
	tell(a);
	reap(kid);
	// What a thread does itself is seen by the others, though the peer sends nothing.
	usleep(20000);
	EQ(shutdown(fd, SHUT_RD), 0);
	all_saw(ROUNDS + 2);
	stage = -(ROUNDS + 2);
	stage = ROUNDS + 3;
	for (int i = 0; i < WAITERS; i++)
		EQ(pthread_join(t[i], NULL), 0);
	_exit(0);
}

int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	pid_t peer = fork_child();
	if (!peer) {
		int c = connect_to(port);
		char b;
		while (recv(c, &b, 1, 0) == 1)
			send_all(c, &b, 1);
		_exit(0);
	}
	fd = accept(l, NULL, NULL);
	CHECK(fd >= 0);
	pid_t kid = fork_child();
	if (!kid)
		serve();
	close(fd);
	reap(kid);
	reap(peer);
	return t_ok("fork_sole_threads");
}
