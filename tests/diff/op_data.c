// Sending.
#include "diff.h"
#include <pthread.h>
#include <sys/mman.h>

static int split(struct iovec *v, unsigned char *b, int len)
{
	int n = 1 + pick(4), off = 0;
	for (int i = 0; i < n; i++) {
		int l = i == n - 1 ? len - off : pick(len - off + 1);
		v[i] = (struct iovec){ b + off, l };
		off += l;
	}
	return n;
}

static const char *SV[] = { "send", "write", "writev", "sendmsg", "sendto", "sendto(addr)" };

static long call_send(int w, int fd, const unsigned char *b, int len, int variant, int flags, struct iovec *v, int nv)
{
	struct msghdr m = { .msg_iov = v, .msg_iovlen = nv };
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = 1 };
	switch (variant) {
	case 1: return w_write(w, fd, b, len);
	case 2: return w_writev(w, fd, v, nv);
	case 3: return w_sendmsg(w, fd, &m, flags);
	case 4: return w_sendto(w, fd, b, len, flags, NULL, 0);
	case 5: return w_sendto(w, fd, b, len, flags, &a, sizeof a);
	default: return w_send(w, fd, b, len, flags);
	}
}

int do_send(int s, int len, int variant, int flags)
{
	struct end *e = S[s].e;
	struct iovec v[2][8];
	int nv = split(v[N], NULL, len);
	if (variant == 1 || variant == 2)
		flags = 0;
	say("%s(s%d, %d, flags %x)", SV[variant], s, len, flags);
	BOTH(w) {
		unsigned char *b = (unsigned char *)pat(e, e->tx[w]);
		size_t off = 0;
		for (int i = 0; i < nv; i++) {
			v[w][i] = (struct iovec){ b + off, v[N][i].iov_len };
			off += v[w][i].iov_len;
		}
		RUN(w, call_send(w, S[s].fd[w], b, len, variant, flags, v[w], nv));
		if (R[w].ret > 0)
			e->tx[w] += R[w].ret;
	}
	check();
	if (e->peer && e->peer->closed && R[K].ret > 0)
		e->hup = 1;
	return 1;
}

static int op_send(void)
{
	int s = any(CONN, CONN);
	if (s < 0 || !S[s].e->peer)
		return 0;
	struct end *e = S[s].e;
	int room = FLIGHT - pending(e->peer, K), variant = pick(6);
	int flags = (chance(30) ? MSG_NOSIGNAL : 0) | (chance(40) ? MSG_DONTWAIT : 0);
	if (room < 0)
		return 0;
	if (!k_ready(s, POLLOUT)) // should not happen with so little in flight
		return 0;
	return do_send(s, pick_len(room), variant, flags);
}

// Much data, which no process reads meanwhile: takes something, stays within the length; the rest is a matter of
// buffers.
static int op_send_big(void)
{
	int s = any(CONN, CONN);
	struct end *e = s < 0 ? NULL : S[s].e;
	int r = e && e->peer ? slot_of(e->peer) : -1;
	if (r < 0 || e->shut_wr || e->hup || e->peer->hup || e->peer->shut_rd)
		return 0;
	if (e->in_ep) // whether the buffer gets full, and so an edge for EPOLLOUT comes, depends on its size
		return 0;
	int len = 100000 + pick(MAXLEN - 100000), v = (int[]){ 0, 3, 4 }[pick(3)];
	long got[2];
	say("%s(s%d, %d, DONTWAIT), then drain s%d", SV[v], s, len, r);
	BOTH(w) {
		const unsigned char *b = pat(e, e->tx[w]);
		struct iovec io = { (void *)b, len };
		begin(w);
		got[w] = call_send(w, S[s].fd[w], b, len, v, MSG_DONTWAIT, &io, 1);
		end_(w, got[w] > 0 ? 1 : got[w]);
		if (got[w] > len)
			fail("sent more than given");
		if (got[w] > 0)
			e->tx[w] += got[w];
	}
	check();
	BOTH(w) drain(e->peer, r, w);
	return 1;
}

// Fill up until EAGAIN stays; no POLLOUT then; drain; POLLOUT comes back.
static int op_fill(void)
{
	int s = any(CONN, CONN);
	struct end *e = s < 0 ? NULL : S[s].e;
	int r = e && e->peer ? slot_of(e->peer) : -1;
	if (r < 0 || e->shut_wr || e->hup || e->peer->hup || e->peer->shut_rd)
		return 0;
	int timed = chance(40) && !e->nb;
	int again = 0;
fill:
	BOTH(w) {
		uint64_t quiet = now_us();
		while (now_us() - quiet < LATE(2500)) {
			struct pollfd p = { S[s].fd[w], POLLOUT, 0 };
			long n = w_send(w, S[s].fd[w], pat(e, e->tx[w]), MAXLEN, MSG_DONTWAIT);
			if (n > 0) {
				e->tx[w] += n;
				quiet = now_us();
			} else if (errno != EAGAIN)
				fail("fill: errno %d in world %c", errno, w == N ? 'N' : 'K');
			if (w_poll(w, &p, 1, 1) > 0)
				quiet = now_us();
		}
	}
	say("s%d is full: send", s);
	BOTH(w) {
		RUN(w, w_send(w, S[s].fd[w], pat(e, e->tx[w]), 1000, MSG_DONTWAIT));
		struct pollfd p = { S[s].fd[w], POLLOUT | POLLIN, 0 };
		w_poll(w, &p, 1, 0);
		ex(w, p.revents & ~POLLIN);
		if (R[w].ret > 0) { // the kernel moved more to the receiver meanwhile, or buffers grew
			e->tx[w] += R[w].ret;
			if (++again > 20)
				fail("room comes back by itself all the time");
			goto fill;
		}
	}
	check();
	if (timed) {
		say("s%d is full: send with SO_SNDTIMEO 10 ms", s);
		struct timeval t = { 0, 10000 }, z = { 0, 0 };
		BOTH(w) {
			w_setsockopt(w, S[s].fd[w], SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
			uint64_t t0 = now_us();
			RUN(w, w_send(w, S[s].fd[w], pat(e, e->tx[w]), 1000, 0));
			uint64_t dt = now_us() - t0;
			if (R[w].ret > 0) { // room came back: late acknowledgements
				e->tx[w] += R[w].ret;
				w_setsockopt(w, S[s].fd[w], SOL_SOCKET, SO_SNDTIMEO, &z, sizeof z);
				if (++again > 20)
					fail("room comes back by itself all the time");
				goto fill;
			}
			if (dt < 8000 || dt > LATE(2000000))
				fail("SO_SNDTIMEO of 10 ms took %llu us in world %d", (unsigned long long)dt, w);
			w_setsockopt(w, S[s].fd[w], SOL_SOCKET, SO_SNDTIMEO, &z, sizeof z);
		}
		check();
	}
	BOTH(w) drain(e->peer, r, w);
	say("s%d drained: poll", s);
	BOTH(w) {
		struct pollfd p = { S[s].fd[w], POLLOUT, 0 };
		RUN(w, w_poll(w, &p, 1, 500 * slow));
		ex(w, p.revents);
	}
	check();
	return 1;
}

struct job { int w, fd, len; struct end *from; uint64_t at; const char *bad; };
static void *reader(void *p)
{
	struct job *j = p;
	unsigned char *b = malloc(65536);
	int got = 0;
	while (got < j->len) {
		int want = j->len - got > 65536 ? 65536 : j->len - got;
		struct pollfd pf = { j->fd, POLLIN, 0 };
		w_poll(j->w, &pf, 1, -1);
		long r = w_recv(j->w, j->fd, b, want, 0);
		if (r < 0 && errno == EAGAIN)
			continue;
		if (r <= 0) {
			j->bad = r ? strerror(errno) : "early end";
			break;
		}
		if (memcmp(b, pat(j->from, j->at + got), r)) {
			j->bad = "wrong bytes";
			break;
		}
		got += r;
	}
	free(b);
	return NULL;
}

// A blocking send of up to 200,000 bytes while another thread reads: takes everything.
static int op_bulk(void)
{
	int s = any(CONN, CONN);
	struct end *e = s < 0 ? NULL : S[s].e;
	int r = e && e->peer ? slot_of(e->peer) : -1;
	if (r < 0 || e->nb || e->in_ep || e->shut_wr || e->hup || e->peer->hup || e->peer->shut_rd || e->peer->lowat || e->peer->rcvto)
		return 0;
	int len = pick_len(MAXLEN), v = pick(6);
	BOTH(w) drain(e->peer, r, w);
	say("bulk %s(s%d, %d) with a reading thread on s%d", SV[v], s, len, r);
	BOTH(w) {
		pthread_t t;
		struct job j = { w, S[r].fd[w], len, e, e->tx[w], NULL };
		const unsigned char *b = pat(e, e->tx[w]);
		struct iovec io[2] = { { (void *)b, len / 3 }, { (void *)(b + len / 3), len - len / 3 } };
		pthread_create(&t, NULL, reader, &j);
		RUN(w, call_send(w, S[s].fd[w], b, len, v, 0, io, 2));
		if (R[w].ret != len) {
			int other = !w;
			if (other == K)
				R[K] = R[N];
			fail("blocking send of %d gives %ld errno %d in world %c", len, R[w].ret, R[w].err, w == N ? 'N' : 'K');
		}
		pthread_join(t, NULL);
		if (j.bad)
			fail("reader in world %c: %s", w == N ? 'N' : 'K', j.bad);
		e->tx[w] += len;
		e->peer->rx[w] += len;
	}
	check();
	return 1;
}

static int op_sendfile(void)
{
	static int fd = -1;
	enum { FSZ = 65521 * 2 };
	if (fd < 0) {
		fd = memfd_create("difftest", 0);
		if (write(fd, PAT, FSZ) != FSZ)
			return 0;
	}
	int s = any(CONN, CONN);
	if (s < 0 || !S[s].e->peer)
		return 0;
	struct end *e = S[s].e;
	int room = FLIGHT - pending(e->peer, K), ptr = chance(60);
	if (room < 0 || !k_ready(s, POLLOUT))
		return 0;
	int len = pick_len(room), past = chance(5);
	say("sendfile(s%d, %d, %s%s)", s, len, ptr ? "offset pointer" : "file position", past ? ", at end of file" : "");
	BOTH(w) {
		off_t at = past ? FSZ : (off_t)((e->tx[w] + (uint64_t)e->id * 977) % 65521), o = at;
		if (!ptr)
			lseek(fd, at, SEEK_SET);
		RUN(w, w_sendfile(w, S[s].fd[w], fd, ptr ? &o : NULL, len));
		ex(w, ptr ? o - at : lseek(fd, 0, SEEK_CUR) - at);
		if (R[w].ret > 0)
			e->tx[w] += R[w].ret;
	}
	check();
	if (e->peer->closed && R[K].ret > 0)
		e->hup = 1;
	return 1;
}

static int op_send_bad(void)
{
	int s = any(CONN, CONN), v = pick(4);
	if (s < 0 || S[s].e->shut_wr || S[s].e->hup || S[s].e->peer->closed || S[s].e->peer->hup)
		return 0;
	say("bad arguments for sending on s%d: case %d", s, v);
	BOTH(w) {
		int fd = S[s].fd[w];
		struct iovec io = { (void *)8, 100 };
		volatile int many = -1;
		struct msghdr m = { .msg_iov = &io, .msg_iovlen = 2000 };
		switch (v) {
		case 0: RUN(w, w_send(w, fd, (void *)8, 100, 0)); break;
		case 1: RUN(w, w_writev(w, fd, &io, many)); break;
		case 2: RUN(w, w_sendmsg(w, fd, &m, 0)); break;
		default: RUN(w, w_writev(w, fd, &io, 1)); break;
		}
	}
	check();
	return 1;
}

struct op OPS_DATA[] = {
	{ "data", 26, op_send, "send" },
	{ "data", 3, op_send_big, "send_big" },
	{ "data", 1, op_fill, "fill" },
	{ "data", 3, op_bulk, "bulk" },
	{ "data", 3, op_sendfile, "sendfile" },
	{ "data", 1, op_send_bad, "send_bad" },
	{ 0 },
};
