// Signals that come while their thread is in a call reach their handler with their siginfo, once each and in order. Real-time
// signals queue; the mask, the stack and the flags of a handler are those that it was installed with.
#include "t.h"
#include <sys/syscall.h>
#include <ucontext.h>
enum { SIGNALS = 20000, AHEAD = 40 };
static pthread_t mainth;
static volatile int got, wrong, ended, nested, on_stack, resets;
static volatile long last;
static char stack[1 << 16];
static void on_queued(int s, siginfo_t *i, void *c)
{
	const ucontext_t *u = c;
	sigset_t now_blocked;
	(void)s;
	int e = errno;
	if (i->si_code != SI_QUEUE || i->si_value.sival_int != got || i->si_pid != getpid() || i->si_errno)
		wrong = 1;
	pthread_sigmask(SIG_BLOCK, NULL, &now_blocked);
	// what the handler blocks, and what the interrupted code blocks
	if (!sigismember(&now_blocked, s) || !sigismember(&now_blocked, SIGWINCH) || sigismember(&u->uc_sigmask, s))
		wrong = 2;
	const char *here = (const char *)&now_blocked;
	on_stack += here >= stack && here < stack + sizeof stack;
	got++;
	errno = e;
}
static void *sends(void *arg)
{
	for (int i = 0; i < SIGNALS; i++) {
		siginfo_t v = { .si_code = SI_QUEUE };
		v.si_pid = getpid(), v.si_uid = getuid(), v.si_value.sival_int = i;
		while (i - got > AHEAD)
			sched_yield();
		// The main thread has the number of the process. musl has no pthread_sigqueue(3).
		while (syscall(SYS_rt_tgsigqueueinfo, getpid(), getpid(), SIGRTMIN + 3, &v) && errno == EAGAIN)
			sched_yield();
	}
	return arg;
}
static void on_nodefer(int s) { (void)s; if (!nested++) raise(SIGUSR2); }
static void on_once(int s) { (void)s; resets++; }
static void first(int s) { (void)s; }
static void second(int s, siginfo_t *i, void *c) { (void)s, (void)i, (void)c; }
static void table(void)
{
	struct sigaction one = { .sa_handler = first, .sa_flags = SA_RESTART | SA_NODEFER }, two = { .sa_sigaction = second, .sa_flags = SA_SIGINFO }, old;
	sigaddset(&one.sa_mask, SIGURG);
	EQ(sigaction(SIGUSR1, &one, NULL), 0);
	EQ(sigaction(SIGUSR1, &two, &old), 0);
	CHECK(old.sa_handler == first && sigismember(&old.sa_mask, SIGURG) && !sigismember(&old.sa_mask, SIGUSR1));
	EQ(old.sa_flags & (SA_RESTART | SA_NODEFER | SA_SIGINFO | SA_RESETHAND | SA_ONSTACK), SA_RESTART | SA_NODEFER);
	two = old;
	EQ(sigaction(SIGUSR1, &two, &old), 0);
	CHECK(old.sa_sigaction == second);
	EQ(old.sa_flags & SA_SIGINFO, SA_SIGINFO);
	CHECK(signal(SIGUSR1, SIG_IGN) == first);
	CHECK(signal(SIGUSR1, first) == SIG_IGN);
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
	EQ(siginterrupt(SIGUSR1, 1), 0);
	EQ(sigaction(SIGUSR1, NULL, &old), 0);
	CHECK(old.sa_handler == first && !(old.sa_flags & (SA_RESTART | SA_SIGINFO)));
	CHECK(signal(SIGUSR1, SIG_DFL) == first);
	FAILS(sigaction(SIGKILL, &one, NULL), EINVAL);
}
// More handlers than a table may have room for: each is given back as it is. None of them runs.
static void many(void)
{
	static char code[3000];
	struct sigaction sa = { 0 }, old;
	for (int i = 0; i < 3000; i++) {
		sa.sa_handler = (void (*)(int))(code + i);
		EQ(sigaction(SIGURG, &sa, NULL), 0);
		EQ(sigaction(SIGURG, NULL, &old), 0);
		CHECK(old.sa_handler == sa.sa_handler && !(old.sa_flags & (SA_SIGINFO | SA_RESTART)));
	}
	CHECK(signal(SIGURG, SIG_DFL) == sa.sa_handler);
}
static void *interrupts(void *arg)
{
	int s = (int)(long)arg;
	for (int i = 0; i < 3; i++) {
		usleep(30000);
		if (!ended)
			pthread_kill(mainth, s);
	}
	return NULL;
}
// recv sleeps, and a signal comes.
static void sleeping(int p[2], int s, void (*f)(int), int flags)
{
	struct sigaction sa = { .sa_handler = f, .sa_flags = flags };
	pthread_t t;
	char b;
	EQ(sigaction(s, &sa, NULL), 0);
	ended = 0;
	pthread_create(&t, NULL, interrupts, (void *)(long)s);
	FAILS(recv(p[1], &b, 1, 0), EINTR);
	ended = 1;
	pthread_join(t, NULL);
}
int main(void)
{
	t_init();
	mainth = pthread_self();
	int p[2];
	unsigned char c = 0, back;
	pair(p);
	table();
	stack_t alt = { .ss_sp = stack, .ss_size = sizeof stack };
	EQ(sigaltstack(&alt, NULL), 0);
	struct sigaction sa = { .sa_sigaction = on_queued, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK };
	sigaddset(&sa.sa_mask, SIGWINCH);
	EQ(sigaction(SIGRTMIN + 3, &sa, NULL), 0);
	pthread_t t;
	EQ(pthread_create(&t, NULL, sends, NULL), 0);
	while (got < SIGNALS && !wrong) {
		EQ(send(p[0], &c, 1, 0), 1);
		EQ(recv(p[1], &back, 1, 0), 1);
		EQ(back, c++);
	}
	if (wrong)
		die("signal %d is wrong (%d)", got, wrong);
	pthread_join(t, NULL);
	EQ(on_stack, SIGNALS);
	struct sigaction two = { .sa_handler = on_nodefer, .sa_flags = SA_NODEFER };
	EQ(sigaction(SIGUSR2, &two, NULL), 0);
	sleeping(p, SIGUSR2, on_nodefer, SA_NODEFER);
	CHECK(nested >= 2);
	// the handler runs once, and the next signal would have the default action
	struct sigaction old;
	sleeping(p, SIGURG, on_once, SA_RESETHAND);
	EQ(resets, 1);
	EQ(sigaction(SIGURG, NULL, &old), 0);
	CHECK(old.sa_handler == SIG_DFL);
	many();
	return t_ok("signal_order");
}
