// One thread removes the first of two numbers of many connections, in every possible way, while another one forks. The
// kernel gives the numbers to other files, of which no call reads or writes a byte, and the connections go on under
// their second numbers, in another process as well.
#include "t.h"
#include <stdatomic.h>
enum { MANY = 30, CLOSE, DUP2, CLOSE_RANGE, FCLOSE, HANDLER, WAYS };
static int first[MANY], second[MANY], other[MANY][2], busy, way;
static atomic_int closed;
static pthread_barrier_t together;
static pthread_t closer;

static void *echo(void *x)
{
	int fd = (int)(long)x;
	char b[64];
	for (ssize_t n; (n = read(fd, b, sizeof b)) > 0;)
		send_all(fd, b, n);
	close(fd);
	return NULL;
}
static void serve(int l)
{
	for (;;) {
		pthread_t t;
		int fd = accept(l, NULL, NULL);
		CHECK(fd >= 0);
		CHECK(!pthread_create(&t, NULL, echo, (void *)(long)fd));
		pthread_detach(t);
	}
}
static void ask(int fd)
{
	char b;
	send_all(fd, "q", 1);
	recv_all(fd, &b, 1);
	EQ(b, 'q');
}
static void on_signal(int s)
{
	(void)s;
	int e = errno;
	if (closed < MANY)
		close(first[closed++]);
	errno = e;
}
static void take_away(int i)
{
	switch (way) {
	case CLOSE: EQ(close(first[i]), 0); break;
	case DUP2: EQ(dup2(other[i][0], first[i]), first[i]); break;
	case CLOSE_RANGE: EQ(close_range(first[i], first[i], 0), 0); break;
	case FCLOSE: EQ(fclose(fdopen(first[i], "r")), 0); break;
	}
}
static void *closes(void *x)
{
	(void)x;
	pthread_barrier_wait(&together);
	if (way == HANDLER)
		while (closed < MANY)
			ask(busy);
	else
		for (int i = 0; i < MANY; i++)
			take_away(i);
	return NULL;
}
static void *signals(void *x)
{
	(void)x;
	pthread_barrier_wait(&together);
	while (way == HANDLER && closed < MANY) {
		pthread_kill(closer, SIGUSR1);
		usleep(20);
	}
	return NULL;
}
// Files that get the numbers. With dup2 they are there before.
static void others(void)
{
	for (int i = 0; i < MANY; i++)
		CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, other[i]));
}
static void silent(int fd)
{
	char b;
	FAILS(recv(fd, &b, 1, MSG_DONTWAIT), EAGAIN);
}
static void check(int i, int u[2])
{
	ask(second[i]);
	pass_fd(u[0], second[i]);
	int taken = take_fd(u[1]);
	ask(second[i]);
	ask(taken);
	close(taken);
	if (way == DUP2) {
		silent(first[i]);
		close(first[i]);
	}
	silent(other[i][0]);
	silent(other[i][1]);
	for (int k = 0; k < 2; k++)
		EQ(write(other[i][k], "o", 1), 1);
	for (int k = 0; k < 2; k++) {
		char b;
		EQ(read(other[i][k], &b, 1), 1);
		EQ(b, 'o');
		close(other[i][k]);
	}
	close(second[i]);
}
static void once(int port)
{
	pthread_t t;
	int u[2];
	for (int i = 0; i < MANY; i++) {
		ask(first[i] = connect_to(port));
		second[i] = fcntl(first[i], F_DUPFD_CLOEXEC, 300);
		CHECK(second[i] >= 0);
	}
	if (way == DUP2)
		others();
	closed = 0;
	CHECK(!pthread_create(&closer, NULL, closes, NULL));
	CHECK(!pthread_create(&t, NULL, signals, NULL));
	pthread_barrier_wait(&together);
	pid_t p = fork_child();
	if (!p)
		_exit(0);
	reap(p);
	CHECK(!pthread_join(t, NULL) && !pthread_join(closer, NULL));
	if (way != DUP2)
		others();
	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, u));
	for (int i = 0; i < MANY; i++)
		check(i, u);
	close(u[0]);
	close(u[1]);
}
int main(int argc, char **argv)
{
	t_init();
	// Number of rounds of each way; more of them search longer.
	int port, l = listen_on(&port), rounds = argc > 1 ? atoi(argv[1]) : 5;
	alarm(argc > 1 ? 0 : t_limit());
	pid_t server = fork_child();
	if (!server)
		serve(l);
	close(l);
	busy = connect_to(port);
	expect_shm(busy);
	signal(SIGUSR1, on_signal);
	CHECK(!pthread_barrier_init(&together, NULL, 3));
	for (int i = 0; i < rounds; i++)
		for (way = CLOSE; way < WAYS; way++)
			once(port);
	kill(server, SIGKILL);
	reap_killed(server);
	return t_ok("close_while_forking");
}
