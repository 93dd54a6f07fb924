// Receiving, and shutdown / linger.
#include "diff.h"

static const char *RV[] = { "recv", "read", "readv", "recvmsg", "recvfrom", "recvfrom(addr)" };

static long call_recv(int w, int fd, unsigned char *b, int len, int variant, int flags, struct iovec *v, int nv)
{
	struct sockaddr_in6 a;
	socklen_t al = sizeof a;
	long r;
	switch (variant) {
	case 1: return w_read(w, fd, b, len);
	case 2: return w_readv(w, fd, v, nv);
	case 3: {
		char ctl[64];
		struct msghdr m = { .msg_iov = v, .msg_iovlen = nv, .msg_name = &a, .msg_namelen = al, .msg_control = ctl,
				    .msg_controllen = sizeof ctl, .msg_flags = 0x7777 };
		r = w_recvmsg(w, fd, &m, flags);
		int keep = errno;
		if (r >= 0) {
			ex(w, m.msg_flags);
			ex(w, m.msg_namelen);
			ex(w, m.msg_controllen);
		}
		errno = keep;
		return r;
	}
	case 4: return w_recvfrom(w, fd, b, len, flags, NULL, NULL);
	case 5:
		r = w_recvfrom(w, fd, b, len, flags, &a, &al);
		ex(w, al);
		return r;
	default: return w_recv(w, fd, b, len, flags);
	}
}

static void verify(struct end *e, int w, int s, long n, int flags, uint64_t at)
{
	if (n <= 0)
		return;
	if (flags & MSG_TRUNC) { // TCP: bytes are dropped, the buffer stays as it was
		for (int i = 0; i < n && i < 64; i++)
			if (RB[w][i] != 0xEE)
				fail("MSG_TRUNC wrote into the buffer in world %c", w == N ? 'N' : 'K');
	} else if (memcmp(RB[w], pat(e->peer, at), n)) {
		int i = 0;
		while (RB[w][i] == pat(e->peer, at)[i])
			i++;
		fail("wrong bytes received on s%d in world %c at stream offset %llu (+%d)", s, w == N ? 'N' : 'K',
		     (unsigned long long)at, i);
	}
}

static int op_recv(void)
{
	int s = any(CONN, CONN);
	if (s < 0 || !S[s].e->peer)
		return 0;
	struct end *e = S[s].e;
	int variant = pick(6), flags = 0, nv = 1 + pick(4);
	int len = chance(70) ? pick_len(FLIGHT) : chance(50) && pending(e, K) > 0 ? pending(e, K) : MAXLEN;
	if (variant != 1 && variant != 2) {
		flags |= chance(20) ? MSG_PEEK : 0;
		flags |= chance(35) ? MSG_DONTWAIT : 0;
		flags |= chance(15) ? MSG_WAITALL : 0;
		flags |= chance(8) ? MSG_TRUNC : 0;
		flags |= chance(10) ? MSG_NOSIGNAL : 0;
	}
	int nb = e->nb || (flags & MSG_DONTWAIT), ready = k_ready(s, POLLIN | POLLRDHUP);
	int eof = (e->peer->closed || e->peer->shut_wr || e->hup || e->shut_rd);
	if (!nb && !e->rcvto) { // must not block for ever: the kernel world tells
		int blocks = !ready || ((flags & MSG_WAITALL) && pending(e, K) < len && !eof) || (e->lowat && !eof && pending(e, K) < 40000);
		if (blocks && (variant == 1 || variant == 2))
			return 0;
		if (blocks)
			flags |= MSG_DONTWAIT, nb = 1;
	}
	struct iovec v[2][8];
	int left = len;
	for (int i = 0; i < nv; i++) {
		int l = i == nv - 1 ? left : pick(left + 1);
		v[N][i].iov_len = v[K][i].iov_len = l;
		left -= l;
	}
	uint64_t at[2] = { e->rx[N], e->rx[K] };
	say("%s(s%d, %d, flags %x)%s", RV[variant], s, len, flags, nb ? " nb" : "");
	BOTH(w) {
		unsigned char *b = RB[w];
		memset(RB[w], 0xEE, 64);
		for (int i = 0; i < nv; i++, b += v[w][i - 1].iov_len)
			v[w][i].iov_base = b;
		RUN(w, call_recv(w, S[s].fd[w], RB[w], len, variant, flags, v[w], nv));
		verify(e, w, s, R[w].ret, flags, at[w]);
		if (R[w].ret > 0 && !(flags & MSG_PEEK))
			e->rx[w] += R[w].ret;
	}
	// Late arrival (only if N was not polled before): take the rest in the world that is behind.
	for (int i = 0; !same() && i < 200 * slow && R[N].sig == R[K].sig; i++) {
		int w = (R[N].ret > 0 ? R[N].ret : 0) < (R[K].ret > 0 ? R[K].ret : 0) ? N : K;
		long have = R[w].ret > 0 ? R[w].ret : 0, other = R[!w].ret;
		if (other < 0 && R[w].ret >= 0 && R[w].ret != 0)
			break;
		if (R[w].ret < 0 && R[w].err != EAGAIN)
			break;
		usleep(1000);
		R[w].nx = 0;
		if (flags & MSG_PEEK)
			have = 0;
		if (have) { // plain continuation
			long r = w_recv(w, S[s].fd[w], RB[w] + have, other - have, flags | MSG_DONTWAIT);
			if (r > 0) {
				e->rx[w] += r;
				R[w].ret = have + r;
			}
			R[w].nx = R[!w].nx;
			memcpy(R[w].x, R[!w].x, sizeof R[w].x);
		} else {
			struct iovec one = { RB[w], other > 0 ? other : len };
			RUN(w, call_recv(w, S[s].fd[w], RB[w], other > 0 ? other : len, variant, flags, &one, 1));
			if (R[w].ret > 0 && !(flags & MSG_PEEK))
				e->rx[w] += R[w].ret;
		}
		verify(e, w, s, R[w].ret, flags, at[w]);
	}
	check();
	return 1;
}

static int op_recv_null(void)
{
	int s = any(CONN, CONN);
	if (s < 0 || !S[s].e->peer)
		return 0;
	struct end *e = S[s].e;
	int len = 1 + pick_len(5000), v = pick(3);
	say("recv(s%d, %s, %d, %s)", s, v == 2 ? "bad pointer" : "NULL", len, v ? v == 1 ? "TRUNC|PEEK" : "0" : "TRUNC");
	BOTH(w) {
		RUN(w, w_recv(w, S[s].fd[w], v == 2 ? (void *)8 : NULL, len,
			      MSG_DONTWAIT | (v == 0 ? MSG_TRUNC : v == 1 ? MSG_TRUNC | MSG_PEEK : 0)));
		if (R[w].ret > 0 && v == 0)
			e->rx[w] += R[w].ret;
	}
	check();
	return 1;
}

static int op_fionread(void)
{
	int s = any(CONN, CONN);
	if (s < 0)
		return 0;
	uint64_t t0 = now_us();
	say("FIONREAD(s%d)", s);
	do {
		R[N].nx = R[K].nx = 0;
		BOTH(w) {
			int q = -1;
			RUN(w, w_ioctl(w, S[s].fd[w], FIONREAD, &q));
			ex(w, q);
		}
	} while (!same() && now_us() - t0 < LATE(200000));
	check();
	return 1;
}

static int op_shutdown(void)
{
	int s = any(CONN, CONN), how = chance(60) ? SHUT_WR : pick(3);
	if (s < 0)
		return 0;
	struct end *e = S[s].e;
	if (chance(2))
		how = 7;
	say("shutdown(s%d, %s)", s, how == 0 ? "RD" : how == 1 ? "WR" : how == 2 ? "RDWR" : "7");
	BOTH(w) RUN(w, w_shutdown(w, S[s].fd[w], how));
	check();
	if (R[K].ret == 0) {
		if (how != SHUT_RD)
			e->shut_wr = 1;
		if (how != SHUT_WR)
			e->shut_rd = 1;
	}
	return 1;
}

static int op_linger(void)
{
	int s = any(CONN, CONN), v = pick(3);
	if (s < 0)
		return 0;
	struct linger l = { v != 0, v == 2 ? 1 : 0 };
	say("SO_LINGER(s%d, %d, %d)", s, l.l_onoff, l.l_linger);
	BOTH(w) {
		struct linger g = { 9, 9 };
		socklen_t n = sizeof g;
		RUN(w, w_setsockopt(w, S[s].fd[w], SOL_SOCKET, SO_LINGER, &l, sizeof l));
		w_getsockopt(w, S[s].fd[w], SOL_SOCKET, SO_LINGER, &g, &n);
		ex(w, g.l_onoff);
		ex(w, g.l_linger);
		ex(w, n);
	}
	check();
	S[s].e->linger0 = v == 1;
	return 1;
}

static int op_abort(void)
{
	int s = any(CONN, CONN);
	if (s < 0)
		return 0;
	struct linger l = { 1, 0 };
	BOTH(w) w_setsockopt(w, S[s].fd[w], SOL_SOCKET, SO_LINGER, &l, sizeof l);
	S[s].e->linger0 = 1;
	return do_close(s);
}

struct op OPS_RECV[] = {
	{ "data", 24, op_recv, "recv" },
	{ "data", 2, op_recv_null, "recv_null" },
	{ "data", 3, op_fionread, "fionread" },
	{ "shut", 4, op_shutdown, "shutdown" },
	{ "shut", 1, op_linger, "linger" },
	{ "shut", 2, op_abort, "abort" },
	{ 0 },
};
