// epoll: level, edge, one-shot, exclusive, MOD, DEL, nested, registered before connect, registration outliving a close.
#include "diff.h"

static uint64_t token;

// What each token was registered for: 0 unknown, the end, or "an epoll".
static struct { struct end *e; int is_ep; } OF[1 << 16];

// Edges that the kernel gives at an unpredictable moment: the acknowledgement of our own FIN (up to 40 ms later).
static int soft(uint64_t tok)
{
	struct end *e = OF[tok & 0xffff].e;
	if (e)
		return e->shut_wr;
	if (OF[tok & 0xffff].is_ep)
		for (int i = 0; i < SLOTS; i++)
			if (S[i].kind == CONN && S[i].e->shut_wr)
				return 1;
	return 0;
}

static unsigned rnd_ev(void)
{
	static const unsigned base[] = { EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLOUT, EPOLLIN | EPOLLRDHUP,
					 EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI, 0, EPOLLRDHUP, EPOLLRDNORM | EPOLLWRNORM };
	unsigned e = base[pick(sizeof base / sizeof *base)];
	if (chance(40))
		e |= EPOLLET;
	if (chance(15))
		e |= EPOLLONESHOT;
	if (chance(4))
		e |= EPOLLEXCLUSIVE;
	return e;
}

static int op_create(void)
{
	int n = 0;
	for (int i = 0; i < SLOTS; i++)
		n += S[i].kind == EPOLL;
	int s = n < 3 ? new_slot() : -1;
	if (s < 0)
		return 0;
	struct end *e = new_end();
	if (!e)
		return 0;
	say("s%d = epoll_create1", s);
	BOTH(w) RUNFD(w, w_epcreate(w, EPOLL_CLOEXEC), S[s].fd);
	check();
	S[s].kind = EPOLL;
	S[s].e = e;
	return 1;
}

static int find_reg(int ep, int s)
{
	for (int i = 0; i < S[ep].nreg; i++)
		if (S[ep].reg[i].slot == s)
			return i;
	return -1;
}

static int op_ctl(void)
{
	int ep = any(EPOLL, EPOLL), s = any(CONN, (enum kind[]){ CONN, SOCK, LIST, EPOLL, EVFD }[pick(5)]);
	if (ep < 0 || s < 0)
		return 0;
	int have = find_reg(ep, s), op;
	if (chance(8))
		op = pick(4); // 0 is invalid
	else
		op = have < 0 ? EPOLL_CTL_ADD : chance(60) ? EPOLL_CTL_MOD : EPOLL_CTL_DEL;
	unsigned ev = rnd_ev();
	uint64_t tok = ++token;
	int nul = op == EPOLL_CTL_DEL && chance(50);
	say("epoll_ctl(s%d, %s, s%d, %x) token %llx", ep, (const char *[]){ "0", "ADD", "DEL", "MOD" }[op], s, ev,
	    (unsigned long long)tok);
	BOTH(w) {
		struct epoll_event e = { ev, { .u64 = tok } };
		RUN(w, w_epctl(w, S[ep].fd[w], op, S[s].fd[w], nul ? NULL : &e));
	}
	check();
	if (R[K].ret)
		return 1;
	if (op != EPOLL_CTL_DEL) {
		OF[tok & 0xffff].e = S[s].kind == CONN ? S[s].e : NULL;
		OF[tok & 0xffff].is_ep = S[s].kind == EPOLL;
		S[s].e->in_ep = 1;
	}
	if (op == EPOLL_CTL_DEL) {
		if (have >= 0)
			S[ep].reg[have] = S[ep].reg[--S[ep].nreg];
	} else {
		if (have < 0 && S[ep].nreg < 64)
			have = S[ep].nreg++;
		if (have >= 0) {
			S[ep].reg[have].slot = s;
			S[ep].reg[have].ev = ev;
		}
		if (ev & (EPOLLET | EPOLLONESHOT))
			S[ep].et = 1;
	}
	return 1;
}

static int cmp_ev(const void *a, const void *b)
{
	const struct epoll_event *x = a, *y = b;
	return x->data.u64 < y->data.u64 ? -1 : x->data.u64 > y->data.u64;
}

static int look(int w, int ep, struct epoll_event *e, int max, int ms, int v)
{
	sigset_t none;
	sigemptyset(&none);
	return v ? w_eppwait(w, S[ep].fd[w], e, max, ms, &none) : w_epwait(w, S[ep].fd[w], e, max, ms);
}

// Add the events of a later look to those of an earlier one.
static int merge(struct epoll_event *to, int n, const struct epoll_event *from, int m)
{
	for (int i = 0; i < m; i++) {
		int j = 0;
		while (j < n && to[j].data.u64 != from[i].data.u64)
			j++;
		if (j == n && n < 64)
			to[n++] = from[i];
		else if (j < n)
			to[j].events |= from[i].events;
	}
	return n;
}

static void fill_res(int w, struct epoll_event *e, int n)
{
	R[w].nx = 0;
	R[w].ret = n;
	qsort(e, n, sizeof *e, cmp_ev);
	for (int i = 0; i < n; i++)
		ex(w, e[i].data.u64 << 32 | e[i].events);
}

static int subset(struct epoll_event *a, int n, struct epoll_event *b, int m) // a within b
{
	for (int i = 0; i < n; i++) {
		int j = 0;
		while (j < m && b[j].data.u64 != a[i].data.u64)
			j++;
		if (j == m || (a[i].events & ~b[j].events))
			return 0;
	}
	return 1;
}

// Leaves out of a what is not in b, where its moment is unpredictable.
static int drop_soft(struct epoll_event *a, int n, struct epoll_event *b, int m)
{
	int k = 0;
	for (int i = 0; i < n; i++)
		if (!soft(a[i].data.u64) || subset(&a[i], 1, b, m))
			a[k++] = a[i];
	return k;
}

static void rearm_nested(int ep);

static int op_wait(void)
{
	int ep = any(EPOLL, EPOLL), v = pick(2), ms = chance(90) ? 0 : 1 + pick(5);
	if (ep < 0)
		return 0;
	struct epoll_event e[2][64], f[64];
	int n[2], max = S[ep].et || chance(80) ? 64 : 1 + pick(3);
	int rm = raw_mode;
	raw_mode = 0; // edges cannot be taken back: both worlds must be at rest
	settle();
	raw_mode = rm;
	rearm_nested(ep);
	say("epoll_%swait(s%d, max %d, %d ms)", v ? "p" : "", ep, max, ms);
	BOTH(w) {
		uint64_t t = now_us();
		RUN(w, look(w, ep, e[w], max, ms, v));
		uint64_t dt = now_us() - t;
		n[w] = R[w].ret;
		if (ms && n[w] == 0 && dt + 200 < (uint64_t)ms * 1000)
			fail("epoll_wait in world %c returned 0 after %d us, before its time", w == N ? 'N' : 'K', (int)dt);
		if (n[w] >= 0 && max == 64)
			fill_res(w, e[w], n[w]);
	}
	for (int i = 0; !same() && i < 100 * slow; i++) {
		usleep(i < 10 ? 300 : 2000);
		BOTH(w) {
			int m = look(w, ep, f, max, 0, v);
			if (max != 64) {
				R[w].ret = m;
				continue;
			}
			n[w] = merge(e[w], n[w], f, m);
			fill_res(w, e[w], n[w]);
		}
	}
	if (!same() && max == 64 && S[ep].et) {
		n[N] = drop_soft(e[N], n[N], e[K], n[K]);
		n[K] = drop_soft(e[K], n[K], e[N], n[N]);
		fill_res(N, e[N], n[N]);
		fill_res(K, e[K], n[K]);
	}
	if (!same() && lax_et && max == 64 && S[ep].et && subset(e[K], n[K], e[N], n[N]))
		fill_res(N, e[K], n[K]);
	check();
	return 1;
}

// An epoll inside an epoll with edge or one-shot registrations: an edge of the inner one depends on when it was last
// looked at, so it is asked with poll first (does not consume) and that must agree.
static void rearm_nested(int ep)
{
	for (int i = 0; i < S[ep].nreg; i++) {
		int s = S[ep].reg[i].slot;
		if (S[s].kind != EPOLL)
			continue;
		uint64_t t0 = now_us();
		say("poll of epoll s%d inside s%d", s, ep);
		do {
			R[N].nx = R[K].nx = 0;
			BOTH(w) {
				struct pollfd p = { S[s].fd[w], POLLIN | POLLOUT, 0 };
				RUN(w, w_poll(w, &p, 1, 0));
				ex(w, p.revents);
			}
		} while (!same() && now_us() - t0 < LATE(200000));
		check();
	}
}

// Registered before connect: the whole life on one epoll.
static int op_before_connect(void)
{
	int l = any(LIST, LIST), ep = new_slot();
	if (l < 0 || ep < 0 || S[l].fam != AF_INET || S[l].lq->tail - S[l].lq->head > 30)
		return 0;
	unsigned ev = EPOLLIN | EPOLLOUT | EPOLLRDHUP | (chance(50) ? EPOLLET : 0);
	int fd[2], e[2], acc[2], nb = chance(60);
	BOTH(w) {
		fd[w] = w_socket(w, AF_INET, SOCK_STREAM | (nb ? SOCK_NONBLOCK : 0), 0);
		e[w] = w_epcreate(w, 0);
	}
	S[ep].kind = EMPTY;
	const char *what[] = { "after ADD", "again", "after connect", "again", "after data", "after FIN" };
	struct sockaddr_in a[2];
	int lfd[2];
	BOTH(w) { // a listener of its own: order in the queue of l stays simple
		socklen_t n = sizeof a[w];
		a[w] = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = host4() };
		lfd[w] = w_socket(w, AF_INET, SOCK_STREAM, 0);
		w_bind(w, lfd[w], &a[w], n);
		w_listen(w, lfd[w], 5);
		w_getsockname(w, lfd[w], &a[w], &n);
		if (w == N)
			to_be_found(lfd[w]);
		struct epoll_event x = { ev, { .u64 = 7 } };
		w_epctl(w, e[w], EPOLL_CTL_ADD, fd[w], &x);
	}
	for (int st = 0; st < 6; st++) {
		if (st == 2) {
			say("connect registered socket%s", nb ? " nb" : "");
			BOTH(w) RUN(w, w_connect(w, fd[w], &a[w], sizeof a[w]));
			check();
			BOTH(w) {
				struct pollfd p = { fd[w], POLLOUT, 0 };
				w_poll(w, &p, 1, 1000 * slow);
				p = (struct pollfd){ lfd[w], POLLIN, 0 };
				w_poll(w, &p, 1, 1000 * slow);
				acc[w] = w_accept(w, lfd[w], NULL, NULL);
			}
		} else if (st == 4) {
			BOTH(w) {
				w_send(w, acc[w], "hello", 5, 0);
				struct pollfd p = { fd[w], POLLIN, 0 };
				w_poll(w, &p, 1, 1000 * slow);
			}
		} else if (st == 5) {
			BOTH(w) {
				w_shutdown(w, acc[w], SHUT_WR);
				struct pollfd p = { fd[w], POLLRDHUP, 0 };
				w_poll(w, &p, 1, 1000 * slow);
			}
		}
		say("epoll (%s) of a socket registered before connect, step %d: %s", ev & EPOLLET ? "ET" : "LT", st, what[st]);
		struct epoll_event x[2][4], f[4];
		int n[2];
		BOTH(w) {
			RUN(w, w_epwait(w, e[w], x[w], 4, 0));
			n[w] = R[w].ret;
			fill_res(w, x[w], n[w]);
		}
		for (int i = 0; !same() && i < 60 * slow; i++) {
			usleep(1000);
			BOTH(w) {
				int m = w_epwait(w, e[w], f, 4, 0);
				n[w] = merge(x[w], n[w], f, m);
				fill_res(w, x[w], n[w]);
			}
		}
		check();
	}
	struct linger lg = { 1, 0 };
	BOTH(w) {
		w_setsockopt(w, fd[w], SOL_SOCKET, SO_LINGER, &lg, sizeof lg);
		w_close(w, fd[w]), w_close(w, acc[w]), w_close(w, lfd[w]), w_close(w, e[w]);
	}
	return 1;
}

static int op_bad(void)
{
	int ep = any(EPOLL, EPOLL), s = any(CONN, LIST), v = pick(7);
	if (ep < 0 || s < 0)
		return 0;
	say("epoll errors: case %d", v);
	static int file = -1;
	if (file < 0)
		file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	BOTH(w) {
		struct epoll_event e = { EPOLLIN, { 0 } };
		int E = S[ep].fd[w], F = S[s].fd[w];
		switch (v) {
		case 0: RUN(w, w_epctl(w, F, EPOLL_CTL_ADD, E, &e)); break; // not an epoll
		case 1: RUN(w, w_epctl(w, E, EPOLL_CTL_ADD, E, &e)); break;
		case 2: RUN(w, w_epctl(w, E, EPOLL_CTL_ADD, 99999, &e)); break;
		case 3: RUN(w, w_epctl(w, E, EPOLL_CTL_ADD, file, &e)); break; // a file: EPERM
		case 4: RUN(w, w_epwait(w, E, &e, 0, 0)); break;
		case 5: RUN(w, w_epwait(w, F, &e, 1, 0)); break;
		default: RUN(w, w_epctl(w, E, EPOLL_CTL_MOD, file, &e)); break;
		}
	}
	check();
	return 1;
}

struct op OPS_EPOLL[] = {
	{ "epoll", 3, op_create, "epoll_create" },
	{ "epoll", 16, op_ctl, "epoll_ctl" },
	{ "epoll", 14, op_wait, "epoll_wait" },
	{ "epoll", 2, op_before_connect, "epoll_before_connect" },
	{ "epoll", 1, op_bad, "epoll_bad" },
	{ 0 },
};
