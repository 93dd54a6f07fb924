#include "conv.h"

enum { MAGIC = 0x53746f72 };

uint64_t draw(uint64_t *s)
{
	*s = *s * 6364136223846793005ull + 1442695040888963407ull;
	return *s >> 33;
}
static unsigned char pattern(uint64_t o, unsigned k)
{
	return (unsigned char)((o * 2654435761u + (o >> 11) + k * 97) >> 7);
}
int born(int parent)
{
	int n = atomic_fetch_add(&L->procs, 1) + 1;
	if (n >= PROCS)
		_exit(3);
	L->proc[n].parent = parent;
	return n;
}
void failed(const struct conv *c, const char *fmt, ...)
{
	char b[100];
	int e = errno;
	const struct slot *s = &L->slot[c ? c->k.slot : 0];
	va_list a;
	va_start(a, fmt);
	vsnprintf(b, sizeof b, fmt, a);
	va_end(a);
	int n = atomic_fetch_add(&L->failed, 1);
	if (n < TEXTS)
		snprintf(L->why[n], sizeof L->why[n], "pid %d, conversation %u (held by %d and %d, trails %o and %o), %s's end after %llu out %llu in of %llu %llu: %s (%s)",
			 getpid(), c ? c->k.slot : 0, c ? (int)s->holder[0] : 0, c ? (int)s->holder[1] : 0,
			 c ? (unsigned)s->trail[0] : 0, c ? (unsigned)s->trail[1] : 0, c && c->k.side ? "server" : "client",
			 c ? (unsigned long long)c->k.sent : 0, c ? (unsigned long long)c->k.got : 0,
			 c ? (unsigned long long)c->out : 0, c ? (unsigned long long)c->in : 0, b, strerror(e));
}
static int was_killed(int h)
{
	for (; h > 0; h = L->proc[h].parent) {
		if (L->proc[h].killed)
			return 1;
		if (L->proc[h].pid)
			return 0;
	}
	return 0;
}
// How many were killed, if that is certain: a process that was killed may still be there for a moment.
int kills_now(void)
{
	int over = L->deaths, all = L->kills;
	return over == all ? all : -1;
}
static int clock_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}
// Between hosts, a process that is killed takes along what it carried for others: its children and, of processes that
// share a listener, the ones beside it, for which one of them listens.
static int carrier_was_killed(struct slot *s, int side)
{
	if (s->engine[side] > 0 && L->proc[s->engine[side]].killed)
		return 1;
	return side == SERVER && L->killed_of[s->server] != s->killed_before;
}
// Whether a process was killed that held an end of it. That the process that carried it at this end is gone is no end
// of what the other one has to say: it is to be told as a reset.
static int excused(const struct conv *c, int is_end)
{
	struct slot *s = &L->slot[c->k.slot];
	for (unsigned side = 0; side < 2; side++)
		if (L->carried && !(is_end && side == c->k.side) && carrier_was_killed(s, side))
			return 1;
	for (int side = 0; side < 2; side++) {
		int h = s->holder[side];
		if (h > 0 ? was_killed(h) : s->kills[side] != L->kills)
			return 1;
	}
	// A client may find the link to a server that is gone and not know it yet; by TCP its connect would be refused.
	int unknown = patience / 4;
	return c->k.side == CLIENT && s->holder[SERVER] == NOBODY && !c->k.got && clock_ms() - L->killed_at < unknown;
}
// Our number for the connection goes. A child that is just being made may hold it a moment longer, and the kernel forgets
// a registration with the last number of a file: so that is taken back first.
static void let_go(struct conv *c)
{
	if (c->ep >= 0)
		epoll_ctl(c->ep, EPOLL_CTL_DEL, c->fd, NULL);
	close(c->fd);
}
// Between hosts a connection that was handed on may be a UNIX socket, which knows no reset.
static int knows_resets(int fd)
{
	int domain = AF_INET;
	socklen_t len = sizeof domain;
	getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len);
	return domain != AF_UNIX;
}
static enum state lost(struct conv *c, const char *what, int is_end)
{
	// The signal comes after its note, so a process that notices the signal finds the note.
	if (excused(c, is_end && knows_resets(c->fd))) {
		L->slot[c->k.slot].done |= 4;
		L->lost++;
	} else {
		failed(c, "%s", what);
	}
	let_go(c);
	return OVER;
}
static void plan(struct conv *c)
{
	uint64_t s = c->k.seed, total[2];
	for (int i = 0; i < 2; i++)
		total[i] = draw(&s) % (draw(&s) % 8 ? 2000 : 400000);
	c->out = total[c->k.side];
	c->in = total[!c->k.side];
	for (int side = 0; side < 2; side++) {
		uint64_t at = 0, all = total[0] + total[1];
		for (int i = 0; i < PLAN; i++) {
			at += draw(&s) % (all - at + 1);
			enum act what = draw(&s) % (ACTS * 3); // mostly nothing
			if (what < ACTS && !(acts_allowed & 1 << (what + 8 * side)))
				what = ACTS;
			if (side == (int)c->k.side) {
				c->plan[i].at = at;
				c->plan[i].what = what;
			}
		}
		unsigned wait = draw(&s) % WAITS;
		if (side == (int)c->k.side)
			c->wait = wait;
	}
}
void conv_open(struct conv *c, int fd, struct kept k)
{
	*c = (struct conv){ .k = k, .fd = fd, .ep = -1, .header = sizeof k };
	plan(c);
}
void conv_accepted(struct conv *c, int fd) { *c = (struct conv){ .fd = fd, .ep = -1, .k.side = SERVER }; }

static int pass(int to, int fd, const struct kept *k)
{
	char ctl[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec v = { (void *)k, sizeof *k };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = ctl, .msg_controllen = sizeof ctl };
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);
	h->cmsg_level = SOL_SOCKET;
	h->cmsg_type = SCM_RIGHTS;
	h->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(h), &fd, sizeof fd);
	return sendmsg(to, &m, MSG_DONTWAIT) == sizeof *k ? 0 : -1;
}
// Takes a connection out of the box, waiting for one. -1: there is none, or no number for it.
int box_take(struct conv *c)
{
	struct kept k;
	char ctl[CMSG_SPACE(sizeof(int))];
	struct iovec v = { &k, sizeof k };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = ctl, .msg_controllen = sizeof ctl };
	if (recvmsg(box, &m, 0) != sizeof k || !CMSG_FIRSTHDR(&m))
		return -1;
	int fd;
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
	L->slot[k.slot].holder[k.side] = me;
	conv_open(c, fd, k);
	return 0;
}
// Everything but the connection and what we share with the others.
static void close_others(int fd)
{
	extern int ledger_fd;
	int keep[3] = { fd, ledger_fd, box };
	for (int i = 0; i < 3; i++)
		for (int k = i + 1; k < 3; k++)
			if (keep[k] < keep[i]) {
				int x = keep[i];
				keep[i] = keep[k];
				keep[k] = x;
			}
	int from = 3;
	for (int i = 0; i < 3; i++) {
		if (keep[i] > from)
			close_range(from, keep[i] - 1, 0);
		from = keep[i] + 1;
	}
	close_range(from, ~0u, 0);
}
static void arguments(char a[][24], const struct conv *c, int fd, int heir)
{
	uint64_t n[] = { fd, heir, c->k.slot, c->k.side, c->k.begun, c->k.ended, c->k.next, c->k.seed, c->k.sent, c->k.got };
	for (unsigned i = 0; i < sizeof n / sizeof *n; i++)
		snprintf(a[i], sizeof a[i], "%llu", (unsigned long long)n[i]);
}
// The connection goes on in a child: in a copy of ours, or in a program that is executed.
static enum state to_child(struct conv *c, enum act what)
{
	extern char **environ;
	enum { NUMBERS = 10, THERE = 77 };
	int heir = born(me);
	word *holder = &L->slot[c->k.slot].holder[c->k.side];
	char a[NUMBERS][24];
	char *argv[NUMBERS + 3] = { self, "go-on" };
	for (int i = 0; i < NUMBERS; i++)
		argv[i + 2] = a[i];
	*holder = heir;
	pid_t p;
	if (c->ep >= 0)
		epoll_ctl(c->ep, EPOLL_CTL_DEL, c->fd, NULL);
	if (what == SPAWN) {
		posix_spawn_file_actions_t f;
		arguments(a, c, THERE, heir);
		posix_spawn_file_actions_init(&f);
		posix_spawn_file_actions_adddup2(&f, c->fd, THERE);
		if (posix_spawn(&p, self, &f, NULL, argv, environ))
			p = -1;
		posix_spawn_file_actions_destroy(&f);
	} else {
		p = fork();
	}
	if (p < 0) {
		*holder = me;
		return AGAIN;
	}
	if (p) {
		let_go(c);
		return HANDED;
	}
	if (what == EXEC) {
		arguments(a, c, c->fd, heir);
		fcntl(c->fd, F_SETFD, 0);
		execv(self, argv);
		_exit(4);
	}
	me = heir;
	L->proc[me].pid = getpid();
	close_others(c->fd);
	c->ep = -1;
	conv_drive(c);
	L->proc[me].pid = -1;
	_exit(0);
}
static enum state perform(struct conv *c, enum act what)
{
	int u[2], n;
	struct slot *s = &L->slot[c->k.slot];
	L->acts[what]++;
	s->trail[c->k.side] = s->trail[c->k.side] * 8 + what + 1;
	switch (what) {
	case PASS_TO_SELF: // a passed descriptor is a kernel socket
		if (!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, u)) {
			if (pass(u[0], c->fd, &c->k))
				failed(c, "cannot pass to myself");
			close(u[0]);
			close(u[1]);
		}
		return AGAIN;
	case OWN_SIGNALS:
		if (fcntl(c->fd, F_SETOWN, getpid()))
			failed(c, "F_SETOWN");
		return AGAIN;
	case PASS:
		s->kills[c->k.side] = kills_now();
		s->holder[c->k.side] = IN_BOX;
		if (pass(box, c->fd, &c->k)) { // full
			s->holder[c->k.side] = me;
			return AGAIN;
		}
		let_go(c);
		return HANDED;
	case DUP:
		n = fcntl(c->fd, F_DUPFD_CLOEXEC, 500);
		if (n >= 0) {
			let_go(c);
			c->fd = n;
		}
		return AGAIN;
	default:
		return to_child(c, what);
	}
}
static int header(struct conv *c)
{
	ssize_t r = recv(c->fd, c->head + c->header, sizeof c->k - c->header, MSG_DONTWAIT);
	if (r <= 0)
		return r < 0 && errno == EAGAIN ? 0 : -1;
	c->header += r;
	if (c->header < sizeof c->k)
		return 1;
	struct kept k;
	memcpy(&k, c->head, sizeof k);
	if (k.next != MAGIC || k.slot >= SLOTS)
		return failed(c, "a header of other bytes"), -1;
	k.side = SERVER;
	k.next = 0;
	k.begun = 1;
	L->slot[k.slot].holder[SERVER] = me;
	L->slot[k.slot].engine[SERVER] = me;
	int ep = c->ep;
	conv_open(c, c->fd, k);
	c->ep = ep;
	return 1;
}
// Moves what can be moved now.
enum state conv_step(struct conv *c)
{
	static __thread unsigned char b[50000];
	for (;;) {
		int moved = 0;
		if (c->header < sizeof c->k) {
			moved = header(c);
			// Nothing is known of a client that is killed before it has introduced itself; one that is not
			// killed checks its end itself.
			if (moved < 0)
				return let_go(c), OVER;
			if (!moved)
				return AGAIN;
		}
		if (!c->k.begun) {
			struct kept k = c->k;
			k.next = MAGIC;
			if (send(c->fd, &k, sizeof k, MSG_NOSIGNAL) != sizeof k)
				return lost(c, "cannot send the header", 0);
			c->k.begun = 1;
		}
		while (c->k.next < PLAN && c->k.sent + c->k.got >= c->plan[c->k.next].at) {
			enum act what = c->plan[c->k.next++].what;
			enum state done = what < ACTS ? perform(c, what) : AGAIN;
			if (done != AGAIN)
				return done;
		}
		ssize_t r = c->k.ended & 2 ? -2 : recv(c->fd, b, sizeof b, MSG_DONTWAIT);
		if (r > 0) {
			for (ssize_t i = 0; i < r; i++)
				if (b[i] != pattern(c->k.got + i, c->k.slot * 2 + !c->k.side))
					return failed(c, "a wrong byte at %llu", (unsigned long long)(c->k.got + i)), let_go(c), OVER;
			c->k.got += r;
			moved = 1;
		} else if (r == 0) {
			if (c->k.got != c->in)
				return lost(c, "the end comes early", 1);
			c->k.ended |= 2;
			moved = 1;
		} else if (r == -1 && errno != EAGAIN && errno != EINTR) {
			return lost(c, "recv", 0);
		}
		uint64_t n = c->out - c->k.sent;
		if (n > sizeof b)
			n = sizeof b;
		if (n) {
			for (uint64_t i = 0; i < n; i++)
				b[i] = pattern(c->k.sent + i, c->k.slot * 2 + c->k.side);
			r = send(c->fd, b, n, MSG_DONTWAIT | MSG_NOSIGNAL);
			if (r > 0) {
				c->k.sent += r;
				moved = 1;
			} else if (r < 0 && errno != EAGAIN && errno != EINTR) {
				return lost(c, "send", 0);
			}
		} else if (!(c->k.ended & 1)) {
			if (shutdown(c->fd, SHUT_WR))
				return lost(c, "shutdown", 0);
			c->k.ended |= 1;
			moved = 1;
		}
		if (c->k.ended == 3 && c->k.next == PLAN) {
			L->slot[c->k.slot].done |= 1 << c->k.side;
			L->completed++;
			return let_go(c), OVER;
		}
		if (!moved)
			return AGAIN;
	}
}
short conv_wants(const struct conv *c)
{
	short in = c->k.ended & 2 ? 0 : POLLIN;
	return in | (c->header == sizeof c->k && c->k.sent < c->out ? POLLOUT : 0);
}
void conv_register(struct conv *c, struct epoll_event *ev)
{
	// The descriptor is new to the instance, or was taken out by what happened to it.
	if (epoll_ctl(c->ep, EPOLL_CTL_MOD, c->fd, ev) && epoll_ctl(c->ep, EPOLL_CTL_ADD, c->fd, ev))
		failed(c, "epoll_ctl");
}
// Waits until something can be moved. Returns 0 if nothing happens within the time.
static int wait_for(struct conv *c)
{
	short w = conv_wants(c);
	if (c->wait == 0 || c->fd >= FD_SETSIZE) {
		struct pollfd p = { c->fd, w, 0 };
		return poll(&p, 1, patience);
	}
	if (c->wait == 1) {
		fd_set r, o;
		struct timeval t = { patience / 1000, 0 };
		FD_ZERO(&r);
		FD_ZERO(&o);
		if (w & POLLIN)
			FD_SET(c->fd, &r);
		if (w & POLLOUT)
			FD_SET(c->fd, &o);
		return select(c->fd + 1, &r, &o, NULL, &t);
	}
	struct epoll_event ev = { .events = w | (c->wait == 3 ? EPOLLET : 0) };
	if (c->ep < 0)
		c->ep = epoll_create1(EPOLL_CLOEXEC);
	conv_register(c, &ev);
	return epoll_wait(c->ep, &ev, 1, patience);
}
void conv_drive(struct conv *c)
{
	while (conv_step(c) == AGAIN)
		if (!wait_for(c)) {
			failed(c, "nothing happens in wait %u", c->wait);
			// It stays as it is until ./run has looked at it.
			for (int i = 0; i < 3000 && !L->looked; i++)
				usleep(10000);
			let_go(c);
			break;
		}
	if (c->ep >= 0)
		close(c->ep);
}
