// Slots, stream patterns, the log of operations and the comparison.
#include "diff.h"
#include <stdarg.h>

struct slot S[SLOTS];
struct res R[2];
unsigned char PAT[65521 + MAXLEN * 2];
unsigned char RB[2][MAXLEN + 4096];
int verbose, lax_et, step, raw_mode, slow;
volatile int sigpipes;
static struct end ENDS[512];
static int nends;
static char LOG[20][460];
static unsigned nlog;
static char cur[200];
extern unsigned long long seed_now;

uint64_t now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int new_slot(void)
{
	for (int i = 0; i < SLOTS; i++)
		if (S[i].kind == EMPTY) {
			struct lq *q = S[i].lq;
			memset(&S[i], 0, sizeof S[i]);
			S[i].lq = q;
			if (q)
				q->head = q->tail = 0;
			S[i].fd[0] = S[i].fd[1] = -1;
			return i;
		}
	return -1;
}

int any(enum kind a, enum kind b)
{
	int c[SLOTS], n = 0;
	for (int i = 0; i < SLOTS; i++)
		if (S[i].kind != EMPTY && (S[i].kind == a || S[i].kind == b))
			c[n++] = i;
	return n ? c[pick(n)] : -1;
}

struct end *new_end(void)
{
	if (nends == 512)
		return NULL;
	struct end *e = &ENDS[nends];
	memset(e, 0, sizeof *e);
	e->id = nends++;
	e->refs = 1;
	return e;
}

void end_put(struct end *e)
{
	if (!e || --e->refs)
		return;
	e->closed = 1;
	if (e->peer && !e->peer->closed && (e->linger0 || pending(e, K) > 0))
		e->peer->hup = 1;
}

const unsigned char *pat(struct end *from, uint64_t off)
{
	return PAT + (off + (uint64_t)from->id * 977) % 65521;
}

int pending(struct end *e, int w)
{
	return e->peer ? (int)(e->peer->tx[w] - e->rx[w]) : 0;
}

void reset_model(void)
{
	nends = 0;
	nlog = 0;
	step = 0;
}

void cleanup_worlds(void)
{
	struct linger l = { 1, 0 };
	for (int i = 0; i < SLOTS; i++) {
		if (S[i].kind == EMPTY)
			continue;
		BOTH(w) {
			// No TIME_WAIT: many sequences would use up the ports.
			if (S[i].kind != EPOLL && S[i].kind != EVFD)
				w_setsockopt(w, S[i].fd[w], SOL_SOCKET, SO_LINGER, &l, sizeof l);
			w_close(w, S[i].fd[w]);
		}
		S[i].kind = EMPTY;
	}
}

void say(const char *fmt, ...)
{
	va_list a;
	va_start(a, fmt);
	vsnprintf(cur, sizeof cur, fmt, a);
	va_end(a);
	R[N].nx = R[K].nx = 0;
}

void begin(int w)
{
	R[w].sig = sigpipes;
	errno = 0;
}

void end_(int w, long ret)
{
	R[w].err = ret < 0 ? errno : 0;
	R[w].ret = ret;
	R[w].sig = sigpipes - R[w].sig;
}

void ex(int w, uint64_t v)
{
	if (R[w].nx < (int)(sizeof R[w].x / sizeof *R[w].x))
		R[w].x[R[w].nx++] = v;
}

int same(void)
{
	return R[N].ret == R[K].ret && R[N].err == R[K].err && R[N].sig == R[K].sig && R[N].nx == R[K].nx &&
	       !memcmp(R[N].x, R[K].x, R[N].nx * sizeof R[N].x[0]);
}

static int show(char *b, int n, int w)
{
	struct res *r = &R[w];
	int k = snprintf(b, n, "%ld", r->ret);
	if (r->ret < 0)
		k += snprintf(b + k, n - k, " %s", strerrorname_np(r->err) ? strerrorname_np(r->err) : "?");
	if (r->sig)
		k += snprintf(b + k, n - k, " SIGPIPE*%d", r->sig);
	for (int i = 0; i < r->nx && k < n - 20; i++)
		k += snprintf(b + k, n - k, "%s%llx", i ? "," : " {", (unsigned long long)r->x[i]);
	if (r->nx && k < n - 2)
		k += snprintf(b + k, n - k, "}");
	return k;
}

static void log_cur(void)
{
	char a[1500], b[1500];
	show(a, sizeof a, N);
	show(b, sizeof b, K);
	char *d = LOG[nlog++ % 20];
	if (same())
		snprintf(d, sizeof LOG[0], "%4d %s -> %.100s", step, cur, b);
	else
		snprintf(d, sizeof LOG[0], "%4d %s -> N: %.100s  K: %.100s", step, cur, a, b);
	if (verbose)
		printf("%s\n", d);
}

void report(const char *why)
{
	char a[1500], b[1500];
	show(a, sizeof a, N);
	show(b, sizeof b, K);
	printf("difftest: %s: seed %llu step %d\n  op: %s\n  N (libc):   %s\n  K (kernel): %s\n", why, seed_now, step, cur, a, b);
	printf("last operations (s<n> are slots; values in {} are extra results in hex):\n");
	for (unsigned i = nlog > 20 ? nlog - 20 : 0; i < nlog; i++)
		printf("  %s\n", LOG[i % 20]);
	printf("slots:\n");
	for (int i = 0; i < SLOTS; i++)
		if (S[i].kind != EMPTY)
			printf("  s%d kind %d (1 sock 2 listen 3 conn 4 epoll 5 eventfd) fd N=%d K=%d end %d peer %d pending N=%d K=%d\n",
			       i, S[i].kind, S[i].fd[N], S[i].fd[K], S[i].e ? S[i].e->id : -1,
			       S[i].e && S[i].e->peer ? S[i].e->peer->id : -1, S[i].e ? pending(S[i].e, N) : 0,
			       S[i].e ? pending(S[i].e, K) : 0);
	printf("again: difftest --seed %llu --sequences 1\n", seed_now);
	fflush(stdout);
}

void fail(const char *fmt, ...)
{
	char why[300];
	va_list a;
	va_start(a, fmt);
	vsnprintf(why, sizeof why, fmt, a);
	va_end(a);
	report(why);
	exit(1);
}

void check(void)
{
	log_cur();
	if (!same())
		fail("difference");
}
