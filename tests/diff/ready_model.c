// Settling: kernel TCP delivers asynchronously for a moment even on loopback. Before a result that depends on
// arrival is compared, both worlds must have come to rest.
#include "diff.h"

#define ALL (POLLIN | POLLPRI | POLLOUT | POLLRDHUP)

int slot_of(struct end *e)
{
	for (int i = 0; i < SLOTS; i++)
		if (S[i].kind == CONN && S[i].e == e)
			return i;
	return -1;
}

int k_ready(int s, short ev)
{
	struct pollfd p = { S[s].fd[K], ev, 0 };
	direct(SYS_poll, &p, 1, 0);
	return p.revents & (ev | POLLERR | POLLHUP | POLLNVAL);
}

// What the model says the kernel world must still come to show; 1 = there.
static int arrived(int s, int revents, int w)
{
	struct end *e = S[s].e;
	if (S[s].kind == LIST)
		return S[s].lq->head == S[s].lq->tail || (revents & POLLIN);
	if (S[s].kind == SOCK)
		return !S[s].connecting || (revents & (POLLOUT | POLLERR));
	if (S[s].kind != CONN || !e->peer || e->noexp)
		return 1;
	if (revents & POLLHUP)
		return 1;
	if (e->hup)
		return 0;
	if ((e->peer->closed || e->peer->shut_wr) && !(revents & POLLRDHUP))
		return 0;
	int q = 0;
	w_ioctl(w, S[s].fd[w], FIONREAD, &q);
	return q == pending(e, w);
}

static int at_rest(int w, short *rev, int must)
{
	struct pollfd p[SLOTS];
	int ix[SLOTS], n = 0, ok = 1;
	for (int i = 0; i < SLOTS; i++) {
		rev[i] = 0;
		if (S[i].kind == EMPTY || S[i].kind == EPOLL)
			continue;
		ix[n] = i;
		p[n++] = (struct pollfd){ S[i].fd[w], ALL, 0 };
	}
	w_poll(w, p, n, 0);
	for (int i = 0; i < n; i++) {
		rev[ix[i]] = p[i].revents;
		if (must && !arrived(ix[i], p[i].revents, w))
			ok = 0;
	}
	return ok;
}

void settle(void)
{
	short a[SLOTS], b[SLOTS];
	uint64_t t0 = now_us(), dt = 0;
	for (;;) {
		int k = at_rest(K, b, dt < LATE(60000));
		// raw_mode: N is not polled, so that the op under test is the first to see the arrival (the library must be as
		// prompt as the kernel; the ops below tolerate a short delay by themselves).
		if (k && raw_mode)
			break;
		int n = k ? at_rest(N, a, dt < LATE(60000)) : 0;
		if (k && n && !memcmp(a, b, sizeof a))
			break;
		dt = now_us() - t0;
		if (dt > LATE(400000))
			break;
		if (dt > 300)
			usleep(dt > 5000 ? 1000 : 50);
	}
	if (dt >= LATE(60000))
		for (int i = 0; i < SLOTS; i++)
			if (S[i].kind == CONN && !arrived(i, b[i], K))
				S[i].e->noexp = 1;
	if (dt > LATE(400000) && !raw_mode) {
		for (int i = 0; i < SLOTS; i++)
			if (a[i] != b[i]) {
				say("poll of all slots (settling): s%d", i);
				BOTH(w) {
					R[w].ret = w == N ? a[i] : b[i];
					R[w].err = R[w].sig = 0;
				}
				fail("difference in readiness (ret = revents)");
			}
	}
}

void drain(struct end *e, int s, int w)
{
	static unsigned char big[65536];
	uint64_t t0 = now_us();
	while (pending(e, w) > 0) {
		long r = w_recv(w, S[s].fd[w], big, sizeof big, MSG_DONTWAIT);
		if (r > 0) {
			if (memcmp(big, pat(e->peer, e->rx[w]), r))
				fail("wrong bytes in world %c while draining s%d at %llu", w == N ? 'N' : 'K', s,
				     (unsigned long long)e->rx[w]);
			e->rx[w] += r;
			continue;
		}
		if (r == 0 || errno != EAGAIN || now_us() - t0 > LATE(2000000))
			fail("drain of s%d in world %c: recv gives %ld errno %d, %d bytes missing", s, w == N ? 'N' : 'K', r,
			     errno, pending(e, w));
		struct pollfd p = { S[s].fd[w], POLLIN, 0 };
		w_poll(w, &p, 1, 50);
	}
}
