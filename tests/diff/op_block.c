// Blocking calls that are woken by another thread: data, shutdown, close, reset.
#include "diff.h"
#include <pthread.h>

enum { ACT_SEND, ACT_FIN, ACT_CLOSE, ACT_RST, ACT_N };
static const char *ACT[] = { "send 100 bytes", "shutdown(WR)", "close", "reset" };

struct act { int w, fd, what; const unsigned char *b; };
static void *actor(void *p)
{
	struct act *a = p;
	struct linger l = { 1, 0 };
	usleep(700); // only so that the other thread usually sleeps by then; either order is right
	switch (a->what) {
	case ACT_SEND: w_send(a->w, a->fd, a->b, 100, MSG_NOSIGNAL); break;
	case ACT_FIN: w_shutdown(a->w, a->fd, SHUT_WR); break;
	case ACT_RST: w_setsockopt(a->w, a->fd, SOL_SOCKET, SO_LINGER, &l, sizeof l); // fall through
	case ACT_CLOSE: w_close(a->w, a->fd); break;
	}
	return NULL;
}

static int op_block(void)
{
	static const char *WAITER[] = { "recv", "read", "poll", "select", "epoll_wait LT", "epoll_wait ET", "recv WAITALL", "ppoll" };
	int s = any(CONN, CONN);
	struct end *e = s < 0 ? NULL : S[s].e;
	int r = e && e->peer ? slot_of(e->peer) : -1;
	if (r < 0 || e->nb || e->hup || e->peer->hup || e->shut_rd || e->peer->shut_wr || e->rcvto || e->lowat || e->peer->refs > 1)
		return 0;
	// nothing unread on either side: then close is a clean end (a reset would depend on the moment)
	BOTH(w) {
		drain(e, s, w);
		if (!e->shut_wr || pending(e->peer, w) > 0)
			drain(e->peer, r, w);
	}
	settle();
	if (k_ready(s, POLLIN | POLLRDHUP))
		return 0;
	int how = pick(8), act = chance(60) ? ACT_SEND : pick(ACT_N), len = how == 6 ? 100 : 1000;
	if (act == ACT_CLOSE && e->peer->linger0)
		return 0;
	int rst = act == ACT_RST;
	say("blocking %s(s%d), woken by %s on s%d", WAITER[how], s, ACT[act], r);
	BOTH(w) {
		pthread_t t;
		struct act a = { w, S[r].fd[w], act, pat(e->peer, e->peer->tx[w]) };
		int fd = S[s].fd[w], ep = -1;
		struct pollfd p = { fd, POLLIN | POLLRDHUP, 0 };
		struct epoll_event ev = { EPOLLIN | EPOLLRDHUP | (how == 5 ? EPOLLET : 0), { .u64 = 5 } };
		struct timeval tv = { 5 * slow, 0 };
		fd_set rs;
		if (how == 4 || how == 5) {
			ep = w_epcreate(w, 0);
			w_epctl(w, ep, EPOLL_CTL_ADD, fd, &ev);
		}
		pthread_create(&t, NULL, actor, &a);
		switch (how) {
		case 0: RUN(w, w_recv(w, fd, RB[w], len, 0)); break;
		case 1: RUN(w, w_read(w, fd, RB[w], len)); break;
		case 6: RUN(w, w_recv(w, fd, RB[w], len, MSG_WAITALL)); break;
		case 2: RUN(w, w_poll(w, &p, 1, 5000 * slow)); ex(w, rst ? p.revents & POLLIN : p.revents); break;
		case 7: RUN(w, w_ppoll(w, &p, 1, 5000, NULL)); ex(w, rst ? p.revents & POLLIN : p.revents); break;
		case 3:
			FD_ZERO(&rs);
			FD_SET(fd, &rs);
			RUN(w, w_select(w, fd + 1, &rs, NULL, NULL, &tv));
			ex(w, FD_ISSET(fd, &rs));
			break;
		default:
			ev.data.u64 = ev.events = 0;
			RUN(w, w_epwait(w, ep, &ev, 1, 5000 * slow));
			ex(w, ev.data.u64);
			ex(w, rst ? ev.events & EPOLLIN : ev.events);
		}
		if (act == ACT_SEND)
			e->peer->tx[w] += 100;
		if ((how <= 1 || how == 6) && R[w].ret > 0) {
			if (memcmp(RB[w], pat(e->peer, e->rx[w]), R[w].ret))
				fail("wrong bytes in world %d", w);
			e->rx[w] += R[w].ret;
		}
		pthread_join(t, NULL);
		if (ep >= 0)
			w_close(w, ep);
	}
	check();
	if (act == ACT_FIN)
		e->peer->shut_wr = 1;
	if (act == ACT_RST)
		e->peer->linger0 = 1;
	if (act == ACT_RST || act == ACT_CLOSE) {
		end_put(e->peer);
		S[r].kind = EMPTY;
	}
	return 1;
}

struct cact { int w; struct sockaddr_in a; socklen_t n; int fd; };
static void *connector(void *p)
{
	struct cact *c = p;
	usleep(700);
	c->fd = w_socket(c->w, AF_INET, SOCK_STREAM, 0);
	w_connect(c->w, c->fd, &c->a, c->n);
	return NULL;
}

// accept, or poll/epoll_wait on a listener, woken by a connect.
static int op_block_accept(void)
{
	int how = pick(3);
	struct linger l = { 1, 0 };
	say("blocking %s on a listener, woken by connect", (const char *[]){ "accept", "poll", "epoll_wait" }[how]);
	BOTH(w) {
		struct cact c = { w, { .sin_family = AF_INET, .sin_addr.s_addr = host4() }, sizeof c.a, -1 };
		int fd = w_socket(w, AF_INET, SOCK_STREAM, 0), got = -1, ep = -1;
		w_bind(w, fd, &c.a, c.n);
		w_listen(w, fd, 5);
		w_getsockname(w, fd, &c.a, &c.n);
		if (w == N)
			to_be_found(fd);
		struct pollfd p = { fd, POLLIN, 0 };
		struct epoll_event ev = { EPOLLIN, { .u64 = 3 } };
		if (how == 2) {
			ep = w_epcreate(w, 0);
			w_epctl(w, ep, EPOLL_CTL_ADD, fd, &ev);
		}
		pthread_t t;
		pthread_create(&t, NULL, connector, &c);
		if (how == 1) {
			RUN(w, w_poll(w, &p, 1, 5000 * slow));
			ex(w, p.revents);
		} else if (how == 2) {
			ev.events = 0;
			RUN(w, w_epwait(w, ep, &ev, 1, 5000 * slow));
			ex(w, ev.events);
		}
		got = w_accept(w, fd, NULL, NULL);
		if (how == 0)
			RUN(w, got >= 0);
		ex(w, got >= 0);
		pthread_join(t, NULL);
		w_setsockopt(w, c.fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
		w_close(w, c.fd), w_close(w, got), w_close(w, fd);
		if (ep >= 0)
			w_close(w, ep);
	}
	check();
	return 1;
}

struct op OPS_BLOCK[] = {
	{ "block", 3, op_block, "block" },
	{ "block", 1, op_block_accept, "block_accept" },
	{ 0 },
};
