// splice between a pipe and a connection waits, or does not, as the flags of the call, the pipe and the socket say; it
// refuses what the kernel refuses, and delays no other thread while it waits.
#include "t.h"
enum { BLOCKS = -1000, NONE = 0 };
static int p[2], pi[2];
static timer_t timer;
static pid_t tid;
static void alarmed(int s)
{
	(void)s;
}
// The result, -errno, or BLOCKS.
static int of(int in, int out, size_t len, unsigned flags)
{
	// Again and again: the first time it may not wait yet.
	struct itimerspec t = { { 0, 10000000 }, { 0, 10000000 } }, off = { { 0, 0 }, { 0, 0 } };
	timer_settime(timer, 0, &t, NULL);
	ssize_t r = splice(in, NULL, out, NULL, len, flags);
	int e = errno;
	timer_settime(timer, 0, &off, NULL);
	return r >= 0 ? (int)r : e == EINTR ? BLOCKS : -e;
}
static void fresh(int socket_waits, int pipe_waits)
{
	pair(p);
	EQ(pipe(pi), 0);
	for (int i = 0; i < 2; i++)
		fcntl(pi[i], F_SETFL, pipe_waits ? 0 : O_NONBLOCK);
	fcntl(p[0], F_SETFL, socket_waits ? 0 : O_NONBLOCK);
}
static void stale(void)
{
	for (int i = 0; i < 2; i++) {
		close(p[i]);
		close(pi[i]);
	}
}
static void fill_pipe(int fd, int socket)
{
	static char block[65536];
	int was = fcntl(fd, F_GETFL);
	fcntl(fd, F_SETFL, was | O_NONBLOCK);
	int idle = 0;
	while (idle < 2) {
		if (write(fd, block, sizeof block) > 0)
			idle = 0;
		else if (!socket || !ready(fd, POLLOUT, 50))
			idle++;
	}
	fcntl(fd, F_SETFL, was);
}
static void whom_it_waits_for(int socket_waits, int pipe_waits, unsigned flag)
{
	int of_pipe = pipe_waits && !flag ? BLOCKS : -EAGAIN, of_socket = socket_waits ? BLOCKS : -EAGAIN;
	fresh(socket_waits, pipe_waits);
	EQ(of(p[0], pi[1], 100, flag), of_socket); // nothing has come
	EQ(of(pi[0], p[0], 100, flag), of_pipe); // nothing is in the pipe
	EQ(of(p[0], pi[1], 0, flag), 0);
	EQ(of(pi[0], p[0], 0, flag), 0);
	send_all(p[1], "hello", 5);
	CHECK(ready(p[0], POLLIN, 1000));
	EQ(of(p[0], pi[1], 0, flag), 0);
	fill_pipe(pi[1], 0);
	EQ(of(p[0], pi[1], 100, flag), of_pipe);
	close(p[1]);
	EQ(of(p[0], pi[1], 0, flag), 0);
	EQ(of(p[0], pi[1], 100, flag), of_pipe);
	p[1] = dup(pi[0]);
	stale();
	fresh(socket_waits, pipe_waits);
	fill_pipe(p[0], 1);
	EQ(write(pi[1], "x", 1), 1);
	EQ(of(pi[0], p[0], 100, flag), of_socket);
	stale();
	fresh(socket_waits, pipe_waits);
	EQ(shutdown(p[0], SHUT_WR), 0);
	EQ(of(pi[0], p[0], 100, flag), of_pipe); // it looks at the pipe first
	EQ(write(pi[1], "x", 1), 1);
	EQ(of(pi[0], p[0], 100, flag), -EPIPE);
	close(pi[0]);
	close(pi[1]);
	EQ(pipe(pi), 0);
	close(pi[1]);
	pi[1] = dup(pi[0]);
	EQ(of(pi[0], p[0], 100, flag), 0);
	stale();
}
static void what_it_refuses(void)
{
	fresh(1, 1);
	loff_t o = 0;
	int f = open("/dev/null", O_RDWR);
	EQ(of(pi[1], p[0], 1, 0), -EBADF);
	EQ(of(p[0], pi[0], 1, 0), -EBADF);
	EQ(of(f, p[0], 1, 0), -EINVAL);
	EQ(of(p[0], f, 1, 0), -EINVAL);
	EQ(of(p[0], p[0], 1, 0), -EINVAL);
	EQ(of(-1, p[0], 1, 0), -EBADF);
	EQ(of(p[0], 1000, 1, 0), -EBADF);
	EQ(of(pi[0], p[0], 1, 0x100), -EINVAL);
	FAILS(splice(pi[0], &o, p[0], NULL, 1, 0), ESPIPE);
	FAILS(splice(pi[0], NULL, p[0], &o, 1, 0), EINVAL);
	FAILS(splice(p[0], NULL, pi[1], &o, 1, 0), ESPIPE);
	FAILS(splice(p[0], &o, pi[1], NULL, 1, 0), EINVAL);
	close(f);
	stale();
}
static void *into(void *x)
{
	(void)x;
	__atomic_store_n(&tid, gettid(), __ATOMIC_SEQ_CST);
	EQ(splice(pi[0], NULL, p[0], NULL, 100, 0), 5);
	return NULL;
}
static void *out_of(void *x)
{
	(void)x;
	__atomic_store_n(&tid, gettid(), __ATOMIC_SEQ_CST);
	EQ(splice(p[0], NULL, pi[1], NULL, 5, 0), 5);
	return NULL;
}
static void start(pthread_t *t, void *(*f)(void *))
{
	tid = 0;
	pthread_create(t, NULL, f, NULL);
	while (!__atomic_load_n(&tid, __ATOMIC_SEQ_CST))
		sched_yield();
	let_it_block(getpid(), tid);
}
// A child is to write what the parent relays, or to read it.
static void whom_it_holds_up(void)
{
	pthread_t t;
	char b[5];
	fresh(1, 1);
	start(&t, into);
	send_all(p[0], "ahead", 5);
	recv_all(p[1], b, 5);
	CHECK(!memcmp(b, "ahead", 5));
	pid_t child = fork_child();
	if (child == 0) {
		EQ(write(pi[1], "relay", 5), 5);
		_exit(0);
	}
	pthread_join(t, NULL);
	recv_all(p[1], b, 5);
	CHECK(!memcmp(b, "relay", 5));
	reap(child);
	stale();
	fresh(1, 1);
	fill_pipe(pi[1], 0);
	send_all(p[1], "relay", 5);
	start(&t, out_of);
	child = fork_child();
	if (child == 0) {
		static char block[65536];
		EQ(read(pi[0], block, sizeof block), sizeof block);
		_exit(0);
	}
	pthread_join(t, NULL);
	reap(child);
	stale();
}
int main(void)
{
	t_init();
	signal(SIGPIPE, SIG_IGN);
	struct sigaction a = { .sa_handler = alarmed };
	sigaction(SIGUSR1, &a, NULL);
	struct sigevent e = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
	EQ(timer_create(CLOCK_MONOTONIC, &e, &timer), 0);
	pair(p);
	expect_shm(p[0]);
	for (int n = 0; n < 8; n++)
		whom_it_waits_for(n & 1, n & 2, n & 4 ? SPLICE_F_NONBLOCK : NONE);
	what_it_refuses();
	whom_it_holds_up();
	return t_ok("splice_");
}
