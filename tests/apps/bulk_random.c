// Transfers of random sizes between two processes, over 4 connections with 4 threads on each side and both ways at
// once, have the right checksums.
#include "t.h"
enum { CONNS = 4, TOTAL = 12000000 };
struct job { int fd; unsigned k; };
static void *tx(void *x)
{
	struct job *j = x;
	static __thread unsigned char b[200000];
	unsigned s = j->k * 7919 + 1;
	uint64_t off = 0;
	while (off < TOTAL) {
		s = s * 1103515245 + 12345;
		size_t n = (s >> 9) % ((s >> 5 & 3) ? 3000 : 200000) + 1;
		if (n > TOTAL - off)
			n = TOTAL - off;
		pat_fill(b, n, off, j->k);
		send_all(j->fd, b, n);
		off += n;
	}
	EQ(shutdown(j->fd, SHUT_WR), 0);
	return NULL;
}
static void *rx(void *x)
{
	struct job *j = x;
	static __thread unsigned char b[200000];
	unsigned s = j->k * 31 + 5;
	uint64_t off = 0;
	for (;;) {
		s = s * 1103515245 + 12345;
		size_t n = (s >> 9) % ((s >> 5 & 3) ? 3000 : 200000) + 1;
		ssize_t r = recv(j->fd, b, n, s & 64 ? MSG_WAITALL : 0);
		if (r < 0)
			die("recv");
		if (!r)
			break;
		pat_check(b, r, off, j->k);
		off += r;
	}
	EQ(off, TOTAL);
	return NULL;
}
static void both(int *fd, unsigned me)
{
	pthread_t t[CONNS][2];
	struct job j[CONNS][2];
	for (int i = 0; i < CONNS; i++) {
		j[i][0] = (struct job){ fd[i], 10 * i + me };
		j[i][1] = (struct job){ fd[i], 10 * i + !me };
		pthread_create(&t[i][0], NULL, tx, &j[i][0]);
		pthread_create(&t[i][1], NULL, rx, &j[i][1]);
	}
	for (int i = 0; i < CONNS; i++) {
		pthread_join(t[i][0], NULL);
		pthread_join(t[i][1], NULL);
	}
}
int main(void)
{
	t_init();
	int port, l = listen_on(&port), fd[CONNS];
	pid_t kid = fork_child();
	for (int i = 0; i < CONNS; i++) {
		fd[i] = kid ? accept(l, NULL, NULL) : connect_to(port);
		CHECK(fd[i] >= 0);
	}
	expect_shm(fd[0]);
	both(fd, !!kid);
	if (!kid)
		_exit(0);
	reap(kid);
	return t_ok("bulk_random");
}
