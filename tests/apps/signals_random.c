// Random signals while a thread sleeps in a random call: what the call returns, which handlers run, in which order, on which
// stack and under which mask, and what is left of masks and dispositions, is the same on a connection that libc's calls
// are made on and on one of the kernel's (direct system calls, which nothing intercepts). Arguments: seed, steps.
#include "t.h"
#include "../diff/world.h"
#include <setjmp.h>
#include <ucontext.h>
enum { RECV, READ_ALL, LIMITED, SEND, ACCEPT, POLL, SELECT, EPOLL, PPOLL, PSELECT, EPPOLL, CALLS };
enum { NOTHING, TALKS, RAISES, FORKS, JUMPS, MASKS, DOES };
static const char *CALL[] = { "recv", "recv of all", "recv with a time-out", "send", "accept", "poll", "select", "epoll_wait",
			      "ppoll", "pselect", "epoll_pwait" };
static const char *DO[] = { "does nothing", "uses a connection", "raises a signal", "forks", "jumps out", "changes the mask" };
enum { SIGNALS = 5, MOST = 16 };
static int signo[SIGNALS];
// A step: the same for both connections.
struct step { int call, does, flags, count, which[3], mask, burst, early; } step;
struct seen { int sig, value, depth, on_stack, blocked, before; };
struct record { long ret; int err, jumped, mask, left, status, n; struct seen seen[MOST]; } record[2];
static struct world { int p[2], q[2], l, port; } world[2];
static int w;
static volatile int begun, ended, sent, finished, depth;
static pid_t main_id;
static sigjmp_buf out;
static char stack[1 << 17];
static unsigned long long random_state;
static int pick(int n)
{
	random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
	return (int)((random_state >> 16) % (unsigned)n);
}
static int bits(const sigset_t *s)
{
	int b = sigismember(s, SIGWINCH) << SIGNALS;
	for (int i = 0; i < SIGNALS; i++)
		b |= sigismember(s, signo[i]) << i;
	return b;
}
static sigset_t set_of(int b)
{
	sigset_t s;
	sigemptyset(&s);
	for (int i = 0; i < SIGNALS; i++)
		if (b >> i & 1)
			sigaddset(&s, signo[i]);
	return s;
}
static void queue(int sig, int value)
{
	siginfo_t v = { .si_code = SI_QUEUE };
	v.si_pid = getpid(), v.si_uid = getuid(), v.si_value.sival_int = value;
	__atomic_add_fetch(&sent, 1, __ATOMIC_SEQ_CST);
	EQ(direct(SYS_rt_tgsigqueueinfo, getpid(), main_id, sig, &v), 0);
}
static void talk(void)
{
	char b = 0;
	EQ(w_send(w, world[w].q[0], "t", 1, 0), 1);
	EQ(w_recv(w, world[w].q[1], &b, 1, 0), 1);
	EQ(b, 't');
}
static void acts(int sig, ucontext_t *u)
{
	struct record *r = &record[w];
	int same = step.flags & SA_NODEFER && !(step.flags & SA_RESETHAND);
	switch (step.does) {
	case TALKS: talk(); break;
	case RAISES: queue(same && sig >= SIGRTMIN ? sig : signo[3] == sig ? signo[4] : signo[3], 99); break; // one that queues
	case MASKS: sigaddset(&u->uc_sigmask, SIGWINCH); break;
	case FORKS: {
		pid_t kid = fork();
		CHECK(kid >= 0);
		if (!kid) {
			alarm(t_limit());
			talk();
			_exit(7);
		}
		EQ(waitpid(kid, &r->status, 0), kid);
	}
	}
}
static void handler(int sig, siginfo_t *i, void *c)
{
	int e = errno, first = finished == 0 && depth == 0;
	struct record *r = &record[w];
	ucontext_t *u = c;
	sigset_t now_blocked;
	pthread_sigmask(SIG_BLOCK, NULL, &now_blocked);
	const char *here = (const char *)&now_blocked;
	if (r->n < MOST)
		r->seen[r->n++] = (struct seen){ sig, i->si_value.sival_int, depth, here >= stack && here < stack + sizeof stack,
						 bits(&now_blocked), bits(&u->uc_sigmask) };
	depth++;
	if (first)
		acts(sig, u);
	depth--;
	errno = e;
	__atomic_add_fetch(&finished, 1, __ATOMIC_SEQ_CST);
	if (first && step.does == JUMPS)
		siglongjmp(out, 1);
}
// Waits until the main thread sleeps in its call; 0: that has ended.
static int sleeps(void)
{
	while (!begun)
		usleep(100);
	let_it_block(getpid(), main_id);
	return !ended;
}
static void *sends(void *x)
{
	for (int k = 0; k < step.count && !step.early; k++) {
		if (!(step.burst && k) && !sleeps())
			break;
		queue(signo[step.which[step.burst ? 0 : k]], k);
		// a handler that has jumped out, or ended the call, may be followed by the end of the step
		while (!step.burst && finished < sent && !ended)
			usleep(100);
	}
	while (finished < sent && !ended)
		usleep(100);
	if (!sleeps())
		return x;
	if (step.call == ACCEPT) {
		struct sockaddr_in a = addr4(world[w].port);
		int c = (int)w_socket(w, AF_INET, SOCK_STREAM, 0);
		EQ(w_connect(w, c, &a, sizeof a), 0);
		w_close(w, c);
	} else {
		EQ(w_send(w, world[w].p[1], "byte", 4, 0), 4);
	}
	return x;
}
static long call(void)
{
	static char big[8 << 20];
	int fd = world[w].p[0];
	struct pollfd f = { fd, POLLIN, 0 };
	struct epoll_event ev = { EPOLLIN, { 0 } };
	sigset_t open;
	fd_set r;
	FD_ZERO(&r);
	FD_SET(fd, &r);
	pthread_sigmask(SIG_BLOCK, NULL, &open);
	for (int i = 0; i < SIGNALS; i++)
		sigdelset(&open, signo[i]);
	int ep = -1;
	if (step.call == EPOLL || step.call == EPPOLL) {
		ep = (int)w_epcreate(w, 0);
		EQ(w_epctl(w, ep, EPOLL_CTL_ADD, fd, &ev), 0);
	}
	// volatile: a handler may jump past the close
	static volatile int last;
	last = ep;
	begun = 1;
	long n = -1;
	switch (step.call) {
	case RECV: case LIMITED: n = w_recv(w, fd, big, 4, 0); break;
	case READ_ALL: n = w_recv(w, fd, big, 6, MSG_WAITALL); break;
	case SEND: n = w_send(w, fd, big, sizeof big, 0); break;
	case ACCEPT: n = w_accept(w, world[w].l, NULL, NULL); break;
	case POLL: n = w_poll(w, &f, 1, -1); break;
	case SELECT: n = w_select(w, fd + 1, &r, NULL, NULL, NULL); break;
	case EPOLL: n = w_epwait(w, ep, &ev, 1, -1); break;
	case PPOLL: n = w_ppoll(w, &f, 1, 30000, &open); break;
	case PSELECT: n = w_pselect(w, fd + 1, &r, NULL, NULL, 30000, &open); break;
	case EPPOLL: n = w_eppwait(w, ep, &ev, 1, -1, &open); break;
	}
	int e = errno;
	if (last >= 0)
		w_close(w, last);
	errno = e;
	return n;
}
static void open_pair(int p[2], int l, int port)
{
	struct sockaddr_in a = addr4(port);
	p[0] = (int)w_socket(w, AF_INET, SOCK_STREAM, 0);
	EQ(w_connect(w, p[0], &a, sizeof a), 0);
	p[1] = (int)w_accept(w, l, NULL, NULL);
	CHECK(p[1] >= 0);
}
static void make_world(void)
{
	struct world *x = &world[w];
	struct sockaddr_in a = addr4(0);
	socklen_t n = sizeof a;
	x->l = (int)w_socket(w, AF_INET, SOCK_STREAM, 0);
	EQ(w_bind(w, x->l, &a, sizeof a), 0);
	EQ(w_listen(w, x->l, 16), 0);
	EQ(w_getsockname(w, x->l, &a, &n), 0);
	x->port = ntohs(a.sin_port);
	open_pair(x->p, x->l, x->port);
	open_pair(x->q, x->l, x->port);
}
static void end_world(void)
{
	struct world *x = &world[w];
	int fds[] = { x->p[0], x->p[1], x->q[0], x->q[1], x->l };
	for (int i = 0; i < 5; i++)
		w_close(w, fds[i]);
}
static void play(void)
{
	struct record *r = &record[w];
	memset(r, 0, sizeof *r);
	make_world();
	begun = ended = sent = finished = depth = 0;
	struct sigaction sa = { .sa_sigaction = handler, .sa_flags = step.flags | SA_SIGINFO, .sa_mask = set_of(step.mask) };
	for (int i = 0; i < SIGNALS; i++)
		EQ(sigaction(signo[i], &sa, NULL), 0);
	int masked = step.call >= PPOLL;
	sigset_t ours = set_of((1 << SIGNALS) - 1), all, before, after;
	struct timeval limit = { 30, 0 };
	if (step.call == LIMITED)
		EQ(w_setsockopt(w, world[w].p[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
	if (step.call == READ_ALL)
		EQ(w_send(w, world[w].p[1], "part", 4, 0), 4);
	sigfillset(&all);
	pthread_t t;
	pthread_sigmask(SIG_SETMASK, &all, &before);
	EQ(pthread_create(&t, NULL, sends, NULL), 0);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (masked)
		pthread_sigmask(SIG_BLOCK, &ours, NULL);
	for (int k = 0; k < step.count && step.early; k++)
		queue(signo[step.which[k]], k);
	if (!sigsetjmp(out, 1)) {
		r->ret = call();
		r->err = r->ret < 0 ? errno : 0;
		if (step.call == SEND && r->ret > 0)
			r->ret = 1;
		if (step.call == ACCEPT && r->ret >= 0)
			w_close(w, (int)r->ret), r->ret = 0;
	} else {
		r->jumped = 1;
		depth = 0;
	}
	ended = 1;
	pthread_sigmask(SIG_BLOCK, NULL, &after);
	r->mask = bits(&after);
	pthread_join(t, NULL);
	// what was sent and not admitted runs now
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	while (finished < sent)
		sched_yield();
	struct sigaction old;
	for (int i = 0; i < SIGNALS; i++) {
		EQ(sigaction(signo[i], NULL, &old), 0);
		r->left |= (old.sa_handler == SIG_DFL) << i;
	}
	talk();
	end_world();
}
static void show(const struct record *r)
{
	fprintf(stderr, "returned %ld (%s), jumped %d, mask %x, defaults %x, child %x\n", r->ret, strerror(r->err), r->jumped,
		r->mask, r->left, r->status);
	for (int i = 0; i < r->n; i++)
		fprintf(stderr, "  signal %d value %d depth %d own stack %d, blocked %x, before %x\n", r->seen[i].sig, r->seen[i].value,
			r->seen[i].depth, r->seen[i].on_stack, r->seen[i].blocked, r->seen[i].before);
}
static void choose(void)
{
	memset(&step, 0, sizeof step);
	step.call = pick(CALLS), step.does = pick(DOES);
	static const int FLAGS[] = { SA_RESTART, SA_NODEFER, SA_ONSTACK };
	for (int i = 0; i < 3; i++)
		step.flags |= pick(2) ? FLAGS[i] : 0;
	step.flags |= pick(6) ? 0 : SA_RESETHAND;
	step.mask = pick(1 << SIGNALS);
	step.count = step.flags & SA_RESETHAND ? 1 : 1 + pick(3);
	for (int k = 0; k < 3; k++)
		step.which[k] = pick(SIGNALS);
	if (step.call >= PPOLL && pick(2)) {
		// all at once, each of another signal; a jump out of one would leave the others, whose frames lie below it
		step.early = 1;
		step.count = step.does == JUMPS ? 1 : step.count;
		step.which[1] = (step.which[0] + 1 + pick(2)) % SIGNALS;
		step.which[2] = (step.which[0] + 3 + pick(2)) % SIGNALS;
	}
	if (step.call < PPOLL && step.count > 1 && step.does != JUMPS && step.does != RAISES && pick(3) == 0) {
		// one real-time signal, which queues: the order of others is not defined
		step.burst = 1;
		step.which[0] = SIGNALS - 1;
		step.flags &= ~SA_NODEFER;
	}
}
int main(int argc, char **argv)
{
	t_init();
	unsigned long long seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	int steps = argc > 2 ? atoi(argv[2]) : 100;
	main_id = gettid();
	random_state = seed * 2862933555777941757ULL + 3037000493ULL;
	signo[0] = SIGUSR1, signo[1] = SIGUSR2, signo[2] = SIGURG, signo[3] = SIGRTMIN + 3, signo[4] = SIGRTMIN + 4;
	stack_t alt = { .ss_sp = stack, .ss_size = sizeof stack };
	EQ(sigaltstack(&alt, NULL), 0);
	for (int i = 0; i < steps; i++) {
		choose();
		for (w = N; w <= K; w++)
			play();
		if (!memcmp(&record[N], &record[K], sizeof record[0]))
			continue;
		for (w = N; w <= K; w++)
			show(&record[w]);
		die("seed %llu, step %d: %s, whose handler %s (flags %x, mask %x, %d signals%s%s)", seed, i, CALL[step.call],
		    DO[step.does], step.flags, step.mask, step.count, step.burst ? " at once" : "", step.early ? " before it" : "");
	}
	return t_ok("signals_random");
}
