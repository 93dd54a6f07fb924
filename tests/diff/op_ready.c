// poll, ppoll, select, pselect; eventfd as a foreign descriptor.
#include "diff.h"

static int choose_set(int *ix, int max)
{
	int n = 0, want = 1 + pick(max);
	for (int i = 0; i < want; i++) {
		int s = pick(SLOTS);
		if (S[s].kind != EMPTY)
			ix[n++] = s;
	}
	return n;
}

static short rnd_events(void)
{
	static const short e[] = { POLLIN, POLLOUT, POLLIN | POLLOUT, POLLIN | POLLRDHUP, POLLRDHUP, 0,
				   POLLIN | POLLPRI, POLLIN | POLLOUT | POLLRDHUP | POLLPRI, POLLRDNORM | POLLWRNORM, POLLWRBAND, POLLRDBAND };
	return e[pick(sizeof e / sizeof *e)];
}

static int op_poll(void)
{
	int ix[12], n = choose_set(ix, 12), v = pick(2), ms = chance(90) ? 0 : 1 + pick(6);
	struct pollfd p[2][14];
	char txt[150];
	int o = 0;
	txt[0] = 0;
	for (int i = 0; i < n; i++) {
		short ev = rnd_events();
		p[N][i] = (struct pollfd){ S[ix[i]].fd[N], ev, 0 };
		p[K][i] = (struct pollfd){ S[ix[i]].fd[K], ev, 0 };
		if (o < 120)
			o += snprintf(txt + o, sizeof txt - o, " s%d:%x", ix[i], ev);
	}
	int m = n;
	if (chance(10)) {
		int fd = chance(50) ? -1 : 99999; // ignored; POLLNVAL
		p[N][m] = p[K][m] = (struct pollfd){ fd, POLLIN, 0 };
		m++;
	}
	if (!m && !ms)
		return 0;
	sigset_t none;
	sigemptyset(&none);
	say("%s(%d fds:%s, %d ms)", v ? "ppoll" : "poll", m, txt, ms);
	uint64_t t0 = now_us();
	do {
		R[N].nx = R[K].nx = 0;
		BOTH(w) {
			for (int i = 0; i < m; i++)
				p[w][i].revents = 0x5555;
			uint64_t t = now_us();
			RUN(w, v ? w_ppoll(w, p[w], m, ms, &none) : w_poll(w, p[w], m, ms));
			uint64_t dt = now_us() - t;
			for (int i = 0; i < m; i++)
				ex(w, (unsigned short)p[w][i].revents);
			if (ms && R[w].ret == 0 && dt + 200 < (uint64_t)ms * 1000)
				fail("poll in world %c returned 0 after %d us, before its time", w == N ? 'N' : 'K', (int)dt);
		}
		if (!same())
			usleep(500);
	} while (!same() && now_us() - t0 < LATE(300000));
	check();
	return 1;
}

static int op_select(void)
{
	int ix[10], n = choose_set(ix, 10), v = pick(2), ms = chance(90) ? 0 : 1 + pick(6);
	int want[10];
	char txt[150];
	int o = 0;
	txt[0] = 0;
	for (int i = 0; i < n; i++) {
		want[i] = 1 + pick(7);
		if (o < 120)
			o += snprintf(txt + o, sizeof txt - o, " s%d:%d", ix[i], want[i]);
	}
	if (!n && !ms)
		return 0;
	sigset_t none;
	sigemptyset(&none);
	say("%s(%s, %d ms) (1 read 2 write 4 except)", v ? "pselect" : "select", txt, ms);
	uint64_t t0 = now_us();
	do {
		R[N].nx = R[K].nx = 0;
		BOTH(w) {
			fd_set r, x, e;
			int top = 0;
			FD_ZERO(&r);
			FD_ZERO(&x);
			FD_ZERO(&e);
			for (int i = 0; i < n; i++) {
				int fd = S[ix[i]].fd[w];
				if (want[i] & 1)
					FD_SET(fd, &r);
				if (want[i] & 2)
					FD_SET(fd, &x);
				if (want[i] & 4)
					FD_SET(fd, &e);
				top = fd >= top ? fd + 1 : top;
			}
			struct timeval t = { 0, ms * 1000 };
			RUN(w, v ? w_pselect(w, top, &r, &x, &e, ms, &none) : w_select(w, top, &r, &x, &e, &t));
			for (int i = 0; i < n; i++) {
				int fd = S[ix[i]].fd[w];
				ex(w, (!!FD_ISSET(fd, &r)) + 2 * (!!FD_ISSET(fd, &x)) + 4 * (!!FD_ISSET(fd, &e)));
			}
		}
		if (!same())
			usleep(500);
	} while (!same() && now_us() - t0 < LATE(300000));
	check();
	return 1;
}

static int op_select_bad(void)
{
	int v = pick(4);
	say("select with bad arguments: case %d", v);
	BOTH(w) {
		fd_set r;
		FD_ZERO(&r);
		FD_SET(1023, &r);
		struct timeval t = { v == 2 ? -1 : 0, v == 3 ? -1 : 0 };
		RUN(w, w_select(w, v == 0 ? -1 : 1024, v == 1 ? &r : NULL, NULL, NULL, &t));
	}
	check();
	return 1;
}

static int op_eventfd(void)
{
	int n = 0;
	for (int i = 0; i < SLOTS; i++)
		n += S[i].kind == EVFD;
	if (n < 2 && chance(50)) {
		int s = new_slot();
		if (s < 0)
			return 0;
		say("s%d = eventfd", s);
		BOTH(w) RUNFD(w, w_eventfd(w, 0, EFD_NONBLOCK), S[s].fd);
		check();
		S[s].kind = EVFD;
		S[s].e = new_end();
		if (!S[s].e) {
			do_close(s);
			return 1;
		}
		S[s].e->nb = 1;
		return 1;
	}
	int s = any(EVFD, EVFD), wr = chance(60);
	if (s < 0)
		return 0;
	say("%s eventfd s%d", wr ? "write" : "read", s);
	BOTH(w) {
		uint64_t x = 1;
		RUN(w, wr ? w_write(w, S[s].fd[w], &x, 8) : w_read(w, S[s].fd[w], &x, 8));
		ex(w, x);
	}
	check();
	return 1;
}

struct op OPS_READY[] = {
	{ "poll", 10, op_poll, "poll" },
	{ "poll", 6, op_select, "select" },
	{ "poll", 1, op_select_bad, "select_bad" },
	{ "poll", 3, op_eventfd, "eventfd" },
	{ 0 },
};
