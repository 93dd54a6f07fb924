// Processes, or threads, that each write all that they have on one connection before they read from another one, such that
// each waits for the next, and the last for the first; or a thread for itself. Kernel TCP holds what they write. A reader that
// makes a pause is no reason to leave shared memory.
#include "t.h"
enum { BYTES = 600000, PIECE = 16384, MOST = 4 };
enum how { BLOCKING, POLL, SELECT, EPOLL, AGAIN, HOWS };
static int port[MOST], l[MOST];
struct member {
	int me, all;
	enum how how;
	int late; // it accepts after it has written
};
static void await_room(int fd, enum how how)
{
	struct epoll_event ev = { EPOLLOUT, { .fd = fd } };
	fd_set w;
	int ep;
	switch (how) {
	case POLL:
		CHECK(ready(fd, POLLOUT, 30000) & POLLOUT);
		break;
	case SELECT:
		FD_ZERO(&w);
		FD_SET(fd, &w);
		EQ(select(fd + 1, NULL, &w, NULL, &(struct timeval){ 30, 0 }), 1);
		break;
	case EPOLL:
		ep = epoll_create1(0);
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev), 0);
		EQ(epoll_wait(ep, &ev, 1, 30000), 1);
		close(ep);
		break;
	default:
		usleep(1000);
	}
}
static void write_all(int fd, unsigned char *b, enum how how)
{
	if (how == BLOCKING)
		return send_all(fd, b, BYTES);
	nonblock(fd);
	for (size_t at = 0; at < BYTES;) {
		ssize_t r = send(fd, b + at, BYTES - at < PIECE ? BYTES - at : PIECE, MSG_NOSIGNAL);
		if (r > 0) {
			at += r;
			continue;
		}
		EQ(errno, EAGAIN);
		await_room(fd, how);
	}
	fcntl(fd, F_SETFL, 0);
}
static void *take_part(void *arg)
{
	struct member m = *(struct member *)arg;
	int next = (m.me + 1) % m.all, before = (m.me + m.all - 1) % m.all;
	unsigned char *b = malloc(BYTES), x;
	int out = connect_to(port[next]), in = m.late ? -1 : accept(l[m.me], NULL, NULL);
	CHECK(b);
	pat_fill(b, BYTES, 0, m.me);
	write_all(out, b, m.how);
	if (m.late)
		in = accept(l[m.me], NULL, NULL);
	CHECK(in >= 0);
	recv_all(in, b, BYTES);
	pat_check(b, BYTES, 0, before);
	send_all(out, "x", 1); // it goes on
	recv_all(in, &x, 1);
	free(b);
	close(out), close(in);
	return NULL;
}
static void circle(int all, enum how how, int threads, int late)
{
	pid_t kid[MOST];
	pthread_t t[MOST];
	struct member m[MOST];
	for (int i = 0; i < all; i++)
		l[i] = listen_on(&port[i]);
	for (int i = 0; i < all; i++) {
		m[i] = (struct member){ i, all, how, late };
		if (threads) {
			EQ(pthread_create(&t[i], NULL, take_part, &m[i]), 0);
			continue;
		}
		kid[i] = fork_child();
		if (!kid[i]) {
			take_part(&m[i]);
			_exit(0);
		}
	}
	for (int i = 0; i < all; i++) {
		if (threads)
			pthread_join(t[i], NULL);
		else
			reap(kid[i]);
	}
	for (int i = 0; i < all; i++)
		close(l[i]);
}
static void *pauses(void *arg)
{
	int fd = *(int *)arg;
	unsigned char *b = malloc(BYTES);
	CHECK(b);
	usleep(1500000);
	recv_all(fd, b, BYTES);
	free(b);
	return NULL;
}
// The writer waits for a reader that makes a pause, and not for another writer.
static void slow_reader(void)
{
	int p[2];
	unsigned char *b = calloc(1, BYTES);
	pthread_t t;
	CHECK(b);
	pair(p);
	EQ(pthread_create(&t, NULL, pauses, &p[1]), 0);
	send_all(p[0], b, BYTES);
	pthread_join(t, NULL);
	expect_shm(p[0]), expect_shm(p[1]);
	close(p[0]), close(p[1]);
	free(b);
}
// A single thread has both ends.
static void alone(enum how how)
{
	int p[2];
	unsigned char *b = malloc(BYTES);
	CHECK(b);
	pair(p);
	pat_fill(b, BYTES, 0, 9);
	write_all(p[0], b, how);
	recv_all(p[1], b, BYTES);
	pat_check(b, BYTES, 0, 9);
	free(b);
	close(p[0]), close(p[1]);
}
int main(void)
{
	t_init();
	for (enum how how = BLOCKING; how < HOWS; how++)
		circle(2, how, 0, 0);
	circle(3, BLOCKING, 0, 0);
	circle(3, EPOLL, 0, 0);
	circle(MOST, POLL, 0, 0);
	circle(2, BLOCKING, 1, 0);
	circle(3, EPOLL, 1, 0);
	circle(2, BLOCKING, 0, 1);
	circle(3, POLL, 0, 1);
	circle(2, EPOLL, 1, 1);
	alone(BLOCKING);
	alone(EPOLL);
	slow_reader();
	return t_ok("writers_in_a_circle");
}
