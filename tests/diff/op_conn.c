// socket, bind, listen, connect, accept, close; names; errors of unconnected sockets.
#include "diff.h"

static void exname(int w, const struct sockaddr_in6 *a, socklen_t len)
{
	ex(w, len);
	ex(w, a->sin6_family);
	if (a->sin6_family == AF_INET)
		ex(w, ((const struct sockaddr_in *)a)->sin_addr.s_addr);
	else
		for (int i = 0; i < 16; i += 4)
			ex(w, a->sin6_addr.s6_addr32[i / 4]);
}

static int port_of(const struct sockaddr_in6 *a)
{
	return ntohs(a->sin6_port); // the same place in sockaddr_in
}

static socklen_t mkaddr(struct sockaddr_in6 *a, int fam, int mapped, int wild, int port)
{
	memset(a, 0, sizeof *a);
	a->sin6_family = fam;
	a->sin6_port = htons(port);
	if (fam == AF_INET) {
		((struct sockaddr_in *)a)->sin_addr.s_addr = wild ? htonl(INADDR_ANY) : host4();
		return sizeof(struct sockaddr_in);
	}
	if (mapped) {
		a->sin6_addr.s6_addr[10] = a->sin6_addr.s6_addr[11] = 0xff;
		a->sin6_addr.s6_addr32[3] = host4();
	} else if (!wild)
		a->sin6_addr = host6();
	return sizeof *a;
}

static int new_sock(int fam, int nb)
{
	int s = new_slot();
	if (s < 0)
		return -1;
	struct end *e = new_end();
	if (!e)
		return -1;
	int one = 1;
	say("s%d = socket(%s%s)", s, fam == AF_INET ? "INET" : "INET6", nb ? ", NONBLOCK" : "");
	BOTH(w) RUNFD(w, w_socket(w, fam, SOCK_STREAM | (nb ? SOCK_NONBLOCK : 0) | SOCK_CLOEXEC, 0), S[s].fd);
	check();
	BOTH(w) w_setsockopt(w, S[s].fd[w], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	S[s].kind = SOCK;
	S[s].fam = fam;
	S[s].e = e;
	e->nb = nb;
	return s;
}

// A first connection to a port over a network has to find the way, and one that does not wait goes by TCP if that takes
// long. So world N has a first one to each address that leads to the listener.
static void find_the_way(int s)
{
	struct linger l = { 1, 0 };
	to_be_found(S[s].fd[N]);
	for (int fam = S[s].fam; fam; fam = fam == AF_INET6 && S[s].wild && !S[s].v6only ? AF_INET : 0) {
		struct sockaddr_in6 a;
		socklen_t n = mkaddr(&a, fam, 0, 0, port_of(&S[s].addr[N]));
		int c = w_socket(N, fam, SOCK_STREAM, 0), d = -1;
		if (w_connect(N, c, &a, n) || (d = w_accept(N, S[s].fd[N], NULL, NULL)) < 0)
			fail("no way to listener s%d", s);
		w_setsockopt(N, c, SOL_SOCKET, SO_LINGER, &l, sizeof l);
		w_close(N, c), w_close(N, d);
	}
}

int make_listener(int fam, int wild, int v6only)
{
	int s = new_sock(fam, 0);
	if (s < 0)
		return -1;
	struct sockaddr_in6 a;
	socklen_t l = mkaddr(&a, fam, 0, wild, 0);
	if (fam == AF_INET6) {
		say("setsockopt(s%d, V6ONLY, %d)", s, v6only);
		BOTH(w) RUN(w, w_setsockopt(w, S[s].fd[w], IPPROTO_IPV6, IPV6_V6ONLY, &v6only, sizeof v6only));
		check();
	}
	say("bind(s%d, %s)", s, wild ? "any" : "loopback");
	BOTH(w) RUN(w, w_bind(w, S[s].fd[w], &a, l));
	check();
	say("listen(s%d)", s);
	BOTH(w) RUN(w, w_listen(w, S[s].fd[w], 100));
	check();
	say("getsockname(s%d)", s);
	BOTH(w) {
		socklen_t n = sizeof S[s].addr[w];
		RUN(w, w_getsockname(w, S[s].fd[w], &S[s].addr[w], &n));
		exname(w, &S[s].addr[w], n);
		if (!port_of(&S[s].addr[w]))
			fail("no port after listen");
	}
	check();
	S[s].kind = LIST;
	S[s].v6only = v6only;
	S[s].wild = wild;
	if (!S[s].lq)
		S[s].lq = malloc(sizeof *S[s].lq);
	S[s].lq->head = S[s].lq->tail = 0;
	if (by_network())
		find_the_way(s);
	return s;
}

// Where to connect in order to reach listener ls; the family is chosen among the possible ones.
static int dest_fam, dest_mapped;
static void choose_dest(int ls)
{
	dest_fam = S[ls].fam;
	dest_mapped = 0;
	if (dest_fam == AF_INET6 && S[ls].wild && !S[ls].v6only) {
		if (chance(50))
			dest_fam = AF_INET;
		else
			dest_mapped = chance(30);
	}
}

static int do_connect(int ls, int nb)
{
	if (S[ls].lq->tail - S[ls].lq->head >= 40)
		return -1;
	choose_dest(ls);
	int s = new_sock(dest_fam, nb);
	if (s < 0)
		return -1;
	struct end *c = S[s].e, *d = new_end();
	if (!d)
		return do_close(s), -1;
	say("connect(s%d -> listener s%d, %s%s)%s", s, ls, dest_fam == AF_INET ? "v4" : "v6", dest_mapped ? " mapped" : "", nb ? " nb" : "");
	BOTH(w) {
		struct sockaddr_in6 a;
		socklen_t l = mkaddr(&a, dest_fam, dest_mapped, 0, port_of(&S[ls].addr[w]));
		RUN(w, w_connect(w, S[s].fd[w], &a, l));
	}
	check();
	S[s].kind = CONN;
	S[s].connecting = nb;
	c->peer = d;
	d->peer = c;
	S[ls].lq->q[S[ls].lq->tail++ & 63] = d;
	say("getsockname(s%d)", s);
	BOTH(w) {
		struct sockaddr_in6 a;
		socklen_t n = sizeof a;
		memset(&a, 0, sizeof a);
		RUN(w, w_getsockname(w, S[s].fd[w], &a, &n));
		exname(w, &a, n);
		c->local_port[w] = port_of(&a);
		d->local_port[w] = port_of(&S[ls].addr[w]);
	}
	check();
	return s;
}

static int do_accept(int ls, int v)
{
	struct lq *q = S[ls].lq;
	int s = new_slot();
	if (s < 0)
		return -1;
	if (q->head == q->tail && !S[ls].e->nb)
		return -1;
	int fl = v >= 2 ? (chance(50) ? SOCK_NONBLOCK : 0) | (chance(50) ? SOCK_CLOEXEC : 0) : 0;
	socklen_t give = chance(85) ? sizeof(struct sockaddr_in6) : (socklen_t)pick(28);
	int one = 1;
	struct sockaddr_in6 a[2];
	say("s%d = accept%s(listener s%d, flags %x, addrlen %d)", s, v >= 2 ? "4" : "", ls, fl, v & 1 ? (int)give : -1);
	uint64_t t0 = now_us();
	int fd[2] = { -1, -1 };
	BOTH(w) {
		socklen_t l = give;
		memset(&a[w], 0xEE, sizeof a[w]);
		// The last steps of a handshake may still be under way.
		do
			RUNFD(w, v >= 2 ? w_accept4(w, S[ls].fd[w], v & 1 ? &a[w] : NULL, v & 1 ? &l : NULL, fl)
					: w_accept(w, S[ls].fd[w], v & 1 ? &a[w] : NULL, v & 1 ? &l : NULL),
			      fd);
		while (R[w].ret < 0 && R[w].err == EAGAIN && q->head != q->tail && now_us() - t0 < LATE(300000));
		if (v & 1 && R[w].ret >= 0) {
			if (give >= sizeof a[w])
				exname(w, &a[w], l);
			else
				ex(w, l);
			if (give >= 4 && q->head != q->tail && port_of(&a[w]) != q->q[q->head & 63]->peer->local_port[w])
				fail("accept in world %c gives another connection (port %d) than the first in the queue (port %d)",
				     w == N ? 'N' : 'K', port_of(&a[w]), q->q[q->head & 63]->peer->local_port[w]);
		}
		if (R[w].ret >= 0) {
			ex(w, w_fcntl(w, fd[w], F_GETFL, 0));
			ex(w, w_fcntl(w, fd[w], F_GETFD, 0));
		}
	}
	check();
	if (R[K].ret < 0)
		return s;
	S[s].kind = CONN;
	S[s].fam = S[ls].fam;
	S[s].fd[N] = fd[N];
	S[s].fd[K] = fd[K];
	S[s].e = q->q[q->head++ & 63];
	S[s].e->nb = !!(fl & SOCK_NONBLOCK);
	BOTH(w) w_setsockopt(w, fd[w], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return s;
}

int make_pair(int ls, int nonblock)
{
	int c = do_connect(ls, nonblock);
	if (c < 0)
		return -1;
	settle();
	return do_accept(ls, pick(4));
}

static void forget_queue(int s)
{
	for (struct lq *q = S[s].lq; q->head != q->tail; q->head++) {
		q->q[q->head & 63]->closed = 1;
		if (!q->q[q->head & 63]->peer->closed)
			q->q[q->head & 63]->peer->hup = 1;
	}
}

int do_close(int s)
{
	say("close(s%d)%s", s, S[s].kind == CONN && pending(S[s].e, K) > 0 ? " with unread data" : "");
	BOTH(w) RUN(w, w_close(w, S[s].fd[w]));
	check();
	if (S[s].kind == LIST && S[s].e->refs == 1)
		forget_queue(s);
	end_put(S[s].e);
	S[s].kind = EMPTY;
	return 1;
}

static int op_listener(void)
{
	int n = 0;
	for (int i = 0; i < SLOTS; i++)
		n += S[i].kind == LIST;
	if (n >= 4)
		return 0;
	int f = chance(50) ? AF_INET : AF_INET6;
	return make_listener(f, chance(40), f == AF_INET6 && chance(40)) >= 0;
}
static int op_connect(void)
{
	int l = any(LIST, LIST);
	return l >= 0 && do_connect(l, chance(50)) >= 0;
}
static int op_pair(void)
{
	int l = any(LIST, LIST), n = 0;
	for (int i = 0; i < SLOTS; i++)
		n += S[i].kind == CONN;
	return l >= 0 && n < 10 && make_pair(l, chance(50)) >= 0;
}
static int op_accept(void)
{
	int l = any(LIST, LIST);
	return l >= 0 && do_accept(l, pick(4)) >= 0;
}
static int op_close(void)
{
	int s = any(CONN, chance(20) ? (enum kind[]){ SOCK, LIST, EPOLL, EVFD }[pick(4)] : CONN);
	return s >= 0 && do_close(s);
}

static int op_connect_again(void)
{
	int s = any(CONN, LIST), l = any(LIST, LIST);
	if (s < 0 || l < 0 || S[s].fam != S[l].fam)
		return 0;
	if (S[s].kind == CONN && k_ready(s, 0) & POLLHUP) // a dead connection can be connected anew: see facts.c
		return 0;
	choose_dest(l);
	say("connect again (s%d -> s%d)", s, l);
	BOTH(w) {
		struct sockaddr_in6 a;
		socklen_t n = mkaddr(&a, S[l].fam, 0, 0, port_of(&S[l].addr[w]));
		RUN(w, w_connect(w, S[s].fd[w], &a, n));
	}
	if (!S[s].e->peer && R[K].ret == 0)
		fail("unexpected success");
	check();
	return 1;
}

static int op_names(void)
{
	int s = any(CONN, chance(30) ? SOCK : LIST), which = pick(2);
	if (s < 0)
		return 0;
	socklen_t give = chance(80) ? 28 : (socklen_t)pick(28);
	say("%s(s%d, len %d)", which ? "getpeername" : "getsockname", s, (int)give);
	BOTH(w) {
		struct sockaddr_in6 a;
		socklen_t n = give;
		memset(&a, 0, sizeof a);
		RUN(w, which ? w_getpeername(w, S[s].fd[w], &a, &n) : w_getsockname(w, S[s].fd[w], &a, &n));
		if (R[w].ret < 0)
			continue;
		if (give == 28)
			exname(w, &a, n);
		else
			ex(w, n);
		struct end *e = S[s].kind == CONN ? (which ? S[s].e->peer : S[s].e) : NULL;
		if (e && give >= 4 && !S[s].e->hup && port_of(&a) != e->local_port[w])
			fail("port %d, expected %d", port_of(&a), e->local_port[w]);
	}
	check();
	return 1;
}

static int closed_port[2][2];
static void closed_ports(void)
{
	if (closed_port[N][0])
		return;
	BOTH(w) for (int f = 0; f < 2; f++) {
		struct sockaddr_in6 a;
		int fd = w_socket(w, f ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
		socklen_t n = mkaddr(&a, f ? AF_INET6 : AF_INET, 0, 0, 0);
		w_bind(w, fd, &a, n); // bound and never listening: nobody else gets this port
		w_getsockname(w, fd, &a, &n);
		closed_port[w][f] = port_of(&a);
	}
}

// Errors: a socket without connection, and one whose connect was refused.
static int op_unconnected(void)
{
	closed_ports();
	int fam = chance(50) ? AF_INET : AF_INET6, nb = chance(50), n = 1 + pick(6);
	int s = new_sock(fam, nb);
	if (s < 0)
		return 0;
	for (int i = 0; i < n; i++) {
		int v = pick(17), l = any(LIST, LIST), refused = 0;
		char b[8];
		if (l >= 0 && S[l].fam != fam)
			l = -1;
		say("unconnected s%d: case %d", s, v);
		BOTH(w) {
			struct sockaddr_in6 a;
			socklen_t al = mkaddr(&a, fam, 0, 0, closed_port[w][fam == AF_INET6]);
			int fd = S[s].fd[w], err = 0, q = 0;
			socklen_t el = sizeof err;
			struct pollfd p = { fd, POLLIN | POLLOUT | POLLPRI | POLLRDHUP, 0 };
			switch (v) {
			case 0: RUN(w, w_send(w, fd, "x", 1, 0)); break;
			case 1: RUN(w, w_send(w, fd, "x", 1, MSG_NOSIGNAL)); break;
			case 2: RUN(w, w_recv(w, fd, b, 8, MSG_DONTWAIT)); break;
			case 3: RUN(w, w_shutdown(w, fd, SHUT_RD)); break;
			case 4: RUN(w, w_getpeername(w, fd, &a, &al)); break;
			case 5: RUN(w, w_accept(w, fd, NULL, NULL)); break;
			case 6: RUN(w, w_poll(w, &p, 1, 0)); ex(w, p.revents); break;
			case 7: case 8: case 9: case 10: // refused
				RUN(w, w_connect(w, fd, &a, al));
				refused = 1;
				break;
			case 11: RUN(w, w_getsockopt(w, fd, SOL_SOCKET, SO_ERROR, &err, &el)); ex(w, err); break;
			case 12: RUN(w, w_connect(w, fd, &a, 3)); break;
			case 13: a.sin6_family = AF_UNIX; RUN(w, w_connect(w, fd, &a, al)); break;
			case 14: RUN(w, w_sendto(w, fd, "y", 1, 0, &a, al)); break;
			case 15: RUN(w, w_ioctl(w, fd, FIONREAD, &q)); ex(w, q); break;
			default: RUN(w, w_bind(w, fd, &a, al)); break; // in use
			}
			if (refused) { // the refusal must have arrived
				p.fd = fd;
				uint64_t t0 = now_us();
				do
					w_poll(w, &p, 1, 10);
				while (!(p.revents & POLLHUP) && now_us() - t0 < LATE(200000));
				ex(w, p.revents);
			}
		}
		check();
	}
	return do_close(s);
}

// Calls that a listening socket refuses; listen twice; binding errors.
static int op_listener_err(void)
{
	int s = any(LIST, LIST), v = pick(10);
	if (s < 0)
		return 0;
	char b[8];
	say("listener s%d: case %d", s, v);
	BOTH(w) {
		struct sockaddr_in6 a;
		socklen_t al = mkaddr(&a, S[s].fam, 0, 0, 0);
		int fd = S[s].fd[w], q = 0;
		switch (v) {
		case 0: RUN(w, w_send(w, fd, "x", 1, 0)); break;
		case 1: RUN(w, w_recv(w, fd, b, 8, MSG_DONTWAIT)); break;
		case 2: RUN(w, w_listen(w, fd, 100)); break;
		case 3: RUN(w, w_bind(w, fd, &a, al)); break;
		case 4: RUN(w, w_getpeername(w, fd, &a, &al)); break;
		case 5: RUN(w, w_ioctl(w, fd, FIONREAD, &q)); break;
		case 6: RUN(w, w_shutdown(w, fd, SHUT_WR)); break;
		case 7: RUN(w, w_read(w, fd, b, 8)); break;
		case 8: RUN(w, w_write(w, fd, b, 8)); break;
		default: RUN(w, w_accept4(w, fd, NULL, NULL, 1 << 20)); break;
		}
	}
	check();
	return 1;
}

static int op_shut_listener(void)
{
	int s = any(LIST, LIST), how = pick(2) * 2;
	if (s < 0 || S[s].e->refs > 1)
		return 0;
	say("shutdown(listener s%d, %s)", s, how ? "RDWR" : "RD");
	BOTH(w) RUN(w, w_shutdown(w, S[s].fd[w], how));
	check();
	forget_queue(s);
	say("accept after shutdown of listener s%d", s);
	BOTH(w) RUN(w, w_accept(w, S[s].fd[w], NULL, NULL));
	check();
	say("connect to listener s%d after its shutdown", s);
	for (int w = N; w <= K && !by_network(); w++) {
		int fd = w_socket(w, AF_INET, SOCK_STREAM, 0);
		struct sockaddr_in6 a;
		socklen_t n = mkaddr(&a, AF_INET, 0, 0, port_of(&S[s].addr[w]));
		RUN(w, w_connect(w, fd, &a, n));
		w_close(w, fd);
	}
	check();
	S[s].kind = SOCK;
	S[s].e->hup = 1;
	return do_close(s);
}

static int op_badf(void)
{
	int v = pick(14), fd = chance(50) ? -1 : 99999;
	char b[8];
	say("bad descriptor %d: case %d", fd, v);
	BOTH(w) {
		struct epoll_event ev = { EPOLLIN, { 0 } };
		struct iovec io = { b, 8 };
		struct msghdr m = { .msg_iov = &io, .msg_iovlen = 1 };
		switch (v) {
		case 0: RUN(w, w_send(w, fd, b, 8, 0)); break;
		case 1: RUN(w, w_recv(w, fd, b, 8, 0)); break;
		case 2: RUN(w, w_read(w, fd, b, 8)); break;
		case 3: RUN(w, w_write(w, fd, b, 8)); break;
		case 4: RUN(w, w_readv(w, fd, &io, 1)); break;
		case 5: RUN(w, w_recvmsg(w, fd, &m, 0)); break;
		case 6: RUN(w, w_close(w, fd)); break;
		case 7: RUN(w, w_dup(w, fd)); break;
		case 8: RUN(w, w_fcntl(w, fd, F_GETFL, 0)); break;
		case 9: RUN(w, w_shutdown(w, fd, SHUT_RD)); break;
		case 10: RUN(w, w_listen(w, fd, 1)); break;
		case 11: RUN(w, w_accept(w, fd, NULL, NULL)); break;
		case 12: RUN(w, w_epwait(w, fd, &ev, 1, 0)); break;
		default: RUN(w, w_epctl(w, fd, EPOLL_CTL_ADD, 0, &ev)); break;
		}
	}
	check();
	return 1;
}

struct op OPS_CONN[] = {
	{ "base", 2, op_listener, "listener" },
	{ "base", 8, op_pair, "pair" },
	{ "base", 6, op_close, "close" },
	{ "conn", 4, op_connect, "connect" },
	{ "conn", 6, op_accept, "accept" },
	{ "conn", 3, op_connect_again, "connect_again" },
	{ "conn", 4, op_names, "names" },
	{ "err", 5, op_unconnected, "unconnected" },
	{ "err", 3, op_listener_err, "listener_err" },
	{ "err", 1, op_shut_listener, "shut_listener" },
	{ "err", 2, op_badf, "badf" },
	{ 0 },
};
