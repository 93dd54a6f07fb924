// Connections are demoted at any byte while both sides send, by either side or both at once, with readers in every kind
// of wait. Every byte arrives once and in order, and then the end of the stream.
#include "t.h"
#include <sys/select.h>
// Several pairs of processes at once: many faults need a thread that loses its processor at a bad moment.
enum { PAIRS = 6, CONNS = 200, MOST = 600000 };
struct side {
	int fd, wait, demoter;
	unsigned key_out, key_in;
	uint64_t out, in, at, seed;
	volatile uint64_t moved;
};
static uint64_t next(uint64_t *s)
{
	*s = *s * 6364136223846793005ull + 1442695040888963407ull;
	return *s >> 33;
}
static void self_pass(int fd) // a passed descriptor must be the kernel's
{
	int u[2];
	EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, u), 0);
	pass_fd(u[0], fd);
	close(u[0]);
	close(u[1]);
}
static void demote(struct side *s)
{
	if (s->demoter == 1)
		EQ(fcntl(s->fd, F_SETOWN, getpid()), 0);
	else
		self_pass(s->fd);
}
static void *writer(void *x)
{
	struct side *s = x;
	uint64_t seed = s->seed, sent = 0;
	static __thread unsigned char b[100000];
	while (sent < s->out) {
		uint64_t n = next(&seed) % (next(&seed) % 4 ? 300 : sizeof b) + 1;
		if (n > s->out - sent)
			n = s->out - sent;
		for (uint64_t i = 0; i < n; i++)
			b[i] = pat1(sent + i, s->key_out);
		if (s->demoter && sent >= s->at && !s->moved) {
			s->moved = 1;
			demote(s);
		}
		for (uint64_t k = 0; k < n;) {
			ssize_t r = send(s->fd, b + k, n - k, MSG_NOSIGNAL);
			if (r < 0 && errno == EAGAIN) {
				struct pollfd p = { s->fd, POLLOUT, 0 };
				poll(&p, 1, -1);
				continue;
			}
			if (r <= 0)
				die("send gives %zd at %llu of %llu", r, (unsigned long long)(sent + k), (unsigned long long)s->out);
			k += r;
		}
		sent += n;
	}
	if (s->demoter && !s->moved) // at the end of the stream
		demote(s);
	EQ(shutdown(s->fd, SHUT_WR), 0);
	return NULL;
}
static void wait_in(struct side *s, int ep)
{
	if (s->wait == 1) {
		struct pollfd p = { s->fd, POLLIN, 0 };
		EQ(poll(&p, 1, -1), 1);
	} else if (s->wait == 2) {
		fd_set f;
		FD_ZERO(&f);
		FD_SET(s->fd, &f);
		EQ(select(s->fd + 1, &f, NULL, NULL, NULL), 1);
	} else if (s->wait >= 3) {
		struct epoll_event ev;
		EQ(epoll_wait(ep, &ev, 1, -1), 1);
		EQ(ev.data.u64, 0xACC7000000000009ull);
		if (s->wait == 5) {
			ev.events = EPOLLIN | EPOLLONESHOT;
			EQ(epoll_ctl(ep, EPOLL_CTL_MOD, s->fd, &ev), 0);
		}
	}
}
static void reader(struct side *s)
{
	static __thread unsigned char b[70000];
	uint64_t got = 0, seed = s->seed + 1;
	int ep = -1, nb = s->wait != 0;
	if (s->wait >= 3) {
		struct epoll_event ev = { .events = EPOLLIN | (s->wait == 4 ? EPOLLET : s->wait == 5 ? EPOLLONESHOT : 0) };
		ev.data.u64 = 0xACC7000000000009ull; // looks like a value of the library's own
		ep = epoll_create1(0);
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, s->fd, &ev), 0);
	}
	for (;;) {
		uint64_t n = next(&seed) % sizeof b + 1;
		int all = !nb && next(&seed) % 2 && n <= s->in - got;
		ssize_t r = recv(s->fd, b, n, all ? MSG_WAITALL : nb ? MSG_DONTWAIT : 0);
		if (r < 0 && errno == EAGAIN && nb) {
			wait_in(s, ep);
			continue;
		}
		if (r < 0)
			die("recv after %llu", (unsigned long long)got);
		if (r == 0)
			break;
		if (all && r != (ssize_t)n)
			die("MSG_WAITALL gives %zd of %llu", r, (unsigned long long)n);
		for (ssize_t i = 0; i < r; i++)
			if (b[i] != pat1(got + i, s->key_in))
				die("wrong byte at %llu", (unsigned long long)(got + i));
		got += r;
	}
	EQ(got, s->in);
	if (ep >= 0)
		close(ep);
}
static void run(int fd, int who, int conn, uint64_t base)
{
	uint64_t seed = base + conn * 7919; // both sides draw the same
	uint64_t amount[2] = { next(&seed) % MOST, next(&seed) % MOST };
	int who_demotes = next(&seed) % 4; // 0, 1, both, none
	struct side s = { .fd = fd, .key_out = who, .key_in = !who, .out = amount[who], .in = amount[!who] };
	for (int k = 0; k < 2; k++) {
		int wait = next(&seed) % 6, how = next(&seed) % 2 + 1;
		uint64_t at = next(&seed) % (amount[k] + 1), mine = next(&seed);
		if (k == who) {
			s.wait = wait;
			s.demoter = who_demotes == who || who_demotes == 2 ? how : 0;
			s.at = at;
			s.seed = mine;
		}
	}
	pthread_t t;
	EQ(pthread_create(&t, NULL, writer, &s), 0);
	reader(&s);
	pthread_join(t, NULL);
	close(fd);
}
static void two_sides(uint64_t base, int conns)
{
	int port, l = listen_on(&port);
	pid_t kid = fork_child();
	if (!kid) {
		close(l);
		for (int i = 0; i < conns; i++)
			run(connect_to(port), 0, i, base);
		_exit(0);
	}
	for (int i = 0; i < conns; i++)
		run(accept(l, NULL, NULL), 1, i, base);
	reap(kid);
}
int main(int argc, char **argv)
{
	t_init();
	uint64_t base = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	int conns = argc > 2 ? atoi(argv[2]) : CONNS;
	pid_t kid[PAIRS];
	for (int i = 0; i < PAIRS; i++) {
		kid[i] = fork_child();
		if (!kid[i]) {
			two_sides(base + i * 1000003ull, conns);
			_exit(0);
		}
	}
	for (int i = 0; i < PAIRS; i++)
		reap(kid[i]);
	return t_ok("demote_storm");
}
