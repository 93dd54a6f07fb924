// dup family, fcntl, ioctl, socket options.
#include "diff.h"

static int op_dup(void)
{
	int s = any(CONN, (enum kind[]){ CONN, LIST, SOCK, EPOLL }[pick(4)]), v = pick(6);
	if (s < 0 || S[s].kind == LIST) // a listener's queue would have to be shared in the model: see op_dup_listener
		return 0;
	int t = new_slot();
	if (t < 0)
		return 0;
	static const char *name[] = { "dup", "F_DUPFD", "F_DUPFD_CLOEXEC", "dup2", "dup3", "dup2 over a live socket" };
	int over = -1;
	if (v == 5) {
		over = any(CONN, CONN);
		if (over < 0 || over == s)
			return 0;
		t = over;
	}
	int target[2] = { -1, -1 }, old[2] = { S[t].fd[N], S[t].fd[K] };
	BOTH(w) {
		if (v == 3 || v == 4)
			target[w] = w_fcntl(w, S[s].fd[w], F_DUPFD, 200);
		if (v == 5)
			target[w] = old[w];
	}
	say("s%d = %s(s%d)", t, name[v], s);
	int fd[2];
	BOTH(w) {
		int f = S[s].fd[w];
		switch (v) {
		case 0: RUNFD(w, w_dup(w, f), fd); break;
		case 1: RUNFD(w, w_fcntl(w, f, F_DUPFD, 100), fd); break;
		case 2: RUNFD(w, w_fcntl(w, f, F_DUPFD_CLOEXEC, 100), fd); break;
		case 4: RUNFD(w, w_dup3(w, f, target[w], O_CLOEXEC), fd); break;
		default: RUNFD(w, w_dup2(w, f, target[w]), fd); break;
		}
		if (fd[w] < 0 || (target[w] >= 0 && fd[w] != target[w]) || ((v == 1 || v == 2) && fd[w] < 100))
			fail("%s gives %d (wanted %d) errno %d", name[v], fd[w], target[w], R[w].err);
		ex(w, w_fcntl(w, fd[w], F_GETFD, 0));
		ex(w, w_fcntl(w, fd[w], F_GETFL, 0));
	}
	check();
	if (v == 5) {
		end_put(S[t].e);
	}
	S[t].kind = S[s].kind;
	S[t].fam = S[s].fam;
	S[t].et = S[s].et;
	S[t].nreg = 0;
	if (S[s].kind == EPOLL) {
		S[t].nreg = S[s].nreg;
		memcpy(S[t].reg, S[s].reg, sizeof S[t].reg);
		S[t].et = S[s].et = 1; // registrations through the other number are not followed
	}
	S[t].fd[N] = fd[N];
	S[t].fd[K] = fd[K];
	S[t].e = S[s].e;
	S[t].e->refs++;
	return 1;
}

static int op_dup_bad(void)
{
	int s = any(CONN, LIST), v = pick(5);
	if (s < 0)
		return 0;
	say("dup errors on s%d: case %d", s, v);
	BOTH(w) {
		int f = S[s].fd[w];
		switch (v) {
		case 0: RUN(w, w_dup2(w, f, f) == f ? 0 : -1); break;
		case 1: RUN(w, w_dup3(w, f, f, 0)); break;
		case 2: RUN(w, w_dup2(w, 99999, f)); break;
		case 3: RUN(w, w_dup2(w, f, -1)); break;
		default: RUN(w, w_dup3(w, f, 300, 1)); break;
		}
	}
	check();
	return 1;
}

// A duplicate of a listening socket: closing the one must not stop the other.
static int op_dup_listener(void)
{
	int s = any(LIST, LIST);
	if (s < 0)
		return 0;
	int fd[2], old[2];
	say("dup(listener s%d), close the original", s);
	BOTH(w) {
		RUNFD(w, w_dup(w, S[s].fd[w]), fd);
		old[w] = S[s].fd[w];
		ex(w, w_close(w, old[w]));
		S[s].fd[w] = fd[w];
	}
	check();
	return 1;
}

static int op_fcntl(void)
{
	int s = any(CONN, (enum kind[]){ CONN, LIST, SOCK, EPOLL }[pick(4)]), v = pick(7);
	if (s < 0)
		return 0;
	long arg = chance(50) ? O_NONBLOCK : 0;
	say("fcntl(s%d) case %d arg %lx", s, v, arg);
	BOTH(w) {
		int f = S[s].fd[w], on = !!arg;
		switch (v) {
		case 0: RUN(w, w_fcntl(w, f, F_GETFL, 0)); break;
		case 1: case 2: RUN(w, w_fcntl(w, f, F_SETFL, arg)); break;
		case 3: RUN(w, w_fcntl(w, f, F_SETFD, on)); break;
		case 4: RUN(w, w_fcntl(w, f, F_GETFD, 0)); break;
		case 5: RUN(w, w_ioctl(w, f, FIONBIO, &on)); break;
		default: RUN(w, w_fcntl(w, f, 9999, 0)); break;
		}
		ex(w, w_fcntl(w, f, F_GETFL, 0));
		ex(w, w_fcntl(w, f, F_GETFD, 0));
	}
	check();
	if (v == 1 || v == 2 || v == 5)
		S[s].e->nb = !!arg;
	return 1;
}

static int op_ioctl_bad(void)
{
	int s = any(CONN, CONN), v = pick(4);
	if (s < 0)
		return 0;
	say("ioctl(s%d) case %d", s, v);
	BOTH(w) {
		int f = S[s].fd[w], q = 0;
		switch (v) {
		case 0: RUN(w, w_ioctl(w, f, 0x5401 /* TCGETS */, RB[0])); break;
		case 1: RUN(w, w_ioctl(w, f, FIONREAD, (void *)8)); break;
		case 2: RUN(w, lseek(f, 0, SEEK_CUR)); break;
		default:
			RUN(w, w_ioctl(w, f, 0x5411 /* SIOCOUTQ */, &q));
			if (S[s].kind != CONN || k_ready(s, 0))
				ex(w, 0); // value only while connected and quiet
			else
				ex(w, q > FLIGHT);
		}
	}
	check();
	return 1;
}

static const struct { int level, opt, lo, hi; const char *name; } OPT[] = {
	{ SOL_SOCKET, SO_TYPE, -1, 0, "SO_TYPE" },
	{ SOL_SOCKET, SO_DOMAIN, -1, 0, "SO_DOMAIN" },
	{ SOL_SOCKET, SO_PROTOCOL, -1, 0, "SO_PROTOCOL" },
	{ SOL_SOCKET, SO_ACCEPTCONN, -1, 0, "SO_ACCEPTCONN" },
	{ SOL_SOCKET, SO_REUSEADDR, 0, 1, "SO_REUSEADDR" },
	{ SOL_SOCKET, SO_KEEPALIVE, 0, 1, "SO_KEEPALIVE" },
	{ SOL_SOCKET, SO_OOBINLINE, 0, 1, "SO_OOBINLINE" },
	{ SOL_SOCKET, SO_DONTROUTE, 0, 1, "SO_DONTROUTE" },
	{ SOL_SOCKET, SO_PRIORITY, 0, 6, "SO_PRIORITY" },
	{ SOL_SOCKET, SO_RCVBUF, 60000, 200000, "SO_RCVBUF" },
	{ SOL_SOCKET, SO_SNDBUF, 100000, 200000, "SO_SNDBUF" },
	{ IPPROTO_TCP, TCP_NODELAY, 1, 1, "TCP_NODELAY" },
	{ IPPROTO_TCP, TCP_KEEPIDLE, -5, 100, "TCP_KEEPIDLE" },
	{ IPPROTO_TCP, TCP_KEEPINTVL, 1, 100, "TCP_KEEPINTVL" },
	{ IPPROTO_TCP, TCP_KEEPCNT, 0, 20, "TCP_KEEPCNT" },
	{ IPPROTO_TCP, TCP_SYNCNT, 0, 8, "TCP_SYNCNT" },
	{ IPPROTO_TCP, TCP_USER_TIMEOUT, 20000, 90000, "TCP_USER_TIMEOUT" },
	{ IPPROTO_TCP, TCP_LINGER2, 1, 50, "TCP_LINGER2" },
	// Not TCP_QUICKACK: the kernel switches it on and off by itself, by the traffic it has seen.
	{ IPPROTO_IP, IP_TOS, 0, 0, "IP_TOS" },
	{ IPPROTO_IP, IP_TTL, 10, 60, "IP_TTL" },
	{ IPPROTO_IPV6, IPV6_V6ONLY, -1, 0, "IPV6_V6ONLY" },
	{ SOL_SOCKET, 9999, 0, 1, "unknown" },
	{ 9999, 1, 0, 1, "unknown level" },
};

static int op_sockopt(void)
{
	int s = any(CONN, chance(30) ? SOCK : LIST), i = pick(sizeof OPT / sizeof *OPT);
	if (s < 0)
		return 0;
	int set = OPT[i].lo != -1 && chance(60), val = OPT[i].lo + pick(OPT[i].hi - OPT[i].lo + 1);
	int buf = OPT[i].opt == SO_RCVBUF || OPT[i].opt == SO_SNDBUF;
	if (buf && OPT[i].level == SOL_SOCKET && !set)
		return 0;
	socklen_t len = chance(90) ? 4 : (socklen_t)pick(8);
	say("%s %s(s%d) %d len %d", set ? "set" : "get", OPT[i].name, s, val, (int)len);
	BOTH(w) {
		int got[4] = { -7, -7, -7, -7 };
		socklen_t n = len;
		if (set) {
			RUN(w, w_setsockopt(w, S[s].fd[w], OPT[i].level, OPT[i].opt, &val, len));
			n = 4;
			ex(w, w_getsockopt(w, S[s].fd[w], OPT[i].level, OPT[i].opt, got, &n));
		} else
			RUN(w, w_getsockopt(w, S[s].fd[w], OPT[i].level, OPT[i].opt, got, &n));
		if (R[w].ret == 0 || !buf) {
			ex(w, got[0]);
			ex(w, n);
		}
	}
	check();
	return 1;
}

static int op_so_error(void)
{
	int s = any(CONN, CONN);
	if (s < 0)
		return 0;
	say("SO_ERROR(s%d)", s);
	BOTH(w) {
		int e = -1;
		socklen_t n = 4;
		RUN(w, w_getsockopt(w, S[s].fd[w], SOL_SOCKET, SO_ERROR, &e, &n));
		ex(w, e);
		ex(w, n);
	}
	check();
	return 1;
}

static int op_timeo(void)
{
	int s = any(CONN, CONN), snd = chance(30), on = chance(60);
	if (s < 0)
		return 0;
	struct timeval t = { 0, on ? 3000 + pick(5000) : 0 };
	if (chance(5))
		t.tv_usec = 2000000; // EDOM
	say("SO_%sTIMEO(s%d, %ld us)", snd ? "SND" : "RCV", s, (long)t.tv_usec);
	BOTH(w) {
		struct timeval g = { 9, 9 };
		socklen_t n = sizeof g;
		RUN(w, w_setsockopt(w, S[s].fd[w], SOL_SOCKET, snd ? SO_SNDTIMEO : SO_RCVTIMEO, &t, sizeof t));
		w_getsockopt(w, S[s].fd[w], SOL_SOCKET, snd ? SO_SNDTIMEO : SO_RCVTIMEO, &g, &n);
		ex(w, g.tv_sec);
		ex(w, g.tv_usec);
	}
	check();
	if (R[K].ret == 0 && !snd)
		S[s].e->rcvto = on;
	return 1;
}

// SO_RCVLOWAT: readiness only from that many bytes on. Set back most of the time.
static int op_lowat(void)
{
	int s = any(CONN, CONN), v = chance(50) ? 1 : 1 + pick(3000);
	if (s < 0 || (!S[s].e->lowat && chance(70)))
		return 0;
	say("SO_RCVLOWAT(s%d, %d)", s, v);
	BOTH(w) {
		int g = 0;
		socklen_t n = 4;
		RUN(w, w_setsockopt(w, S[s].fd[w], SOL_SOCKET, SO_RCVLOWAT, &v, 4));
		w_getsockopt(w, S[s].fd[w], SOL_SOCKET, SO_RCVLOWAT, &g, &n);
		ex(w, g);
	}
	check();
	S[s].e->lowat = v > 1;
	return 1;
}

static int op_tcp_state(void)
{
	int s = any(CONN, CONN);
	if (s < 0)
		return 0;
	uint64_t t0 = now_us();
	say("TCP_INFO state of s%d", s);
	do {
		R[N].nx = R[K].nx = 0;
		BOTH(w) {
			struct tcp_info ti;
			socklen_t n = sizeof ti;
			memset(&ti, 0, sizeof ti);
			RUN(w, w_getsockopt(w, S[s].fd[w], IPPROTO_TCP, TCP_INFO, &ti, &n));
			ex(w, ti.tcpi_state);
		}
	} while (!same() && now_us() - t0 < LATE(200000));
	check();
	return 1;
}

struct op OPS_MISC[] = {
	{ "dup", 6, op_dup, "dup" },
	{ "dup", 1, op_dup_bad, "dup_bad" },
	{ "dup", 2, op_dup_listener, "dup_listener" },
	{ "opts", 5, op_fcntl, "fcntl" },
	{ "opts", 1, op_ioctl_bad, "ioctl" },
	{ "opts", 5, op_sockopt, "sockopt" },
	{ "opts", 4, op_so_error, "so_error" },
	{ "opts", 2, op_timeo, "timeo" },
	{ "opts", 1, op_lowat, "lowat" },
	{ "opts", 2, op_tcp_state, "tcp_state" },
	{ 0 },
};
