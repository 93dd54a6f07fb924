// A waiting thread is woken for something that is nothing to tell the program, and a signal comes before the thread gets its CPU:
// the call ends, as one does that is still asleep. What wakes it is the death of a client, or netacc_ctl, after which the call goes
// on in the kernel. The other process has the same CPU and, if it may, a real-time priority, so that both have come when the
// thread goes on.
#include "ctl.h"
#include <sched.h>
#include <sys/mman.h>
enum { ROUNDS = 12 };
static int l, ep, port, conn[2];
static volatile int handled;
// The number of the call that is being made, or 0: written by the waiting process only.
static volatile int *in_call;
static void on(int s) { (void)s; handled++; }
static int by_recv(void)
{
	char b;
	return recv(conn[0], &b, 1, 0);
}
static int by_accept(void) { return accept(l, NULL, NULL); }
static int by_poll(void)
{
	struct pollfd f = { l, POLLIN, 0 };
	return poll(&f, 1, -1);
}
static int by_epoll(void)
{
	struct epoll_event ev;
	return epoll_wait(ep, &ev, 1, -1);
}
static const struct {
	const char *name;
	int (*call)(void);
	int by_ctl;
} cases[] = { { "accept", by_accept, 0 },	 { "poll", by_poll, 0 },	  { "epoll_wait", by_epoll, 0 },
	      { "recv, and netacc_ctl", by_recv, 1 }, { "accept, and netacc_ctl", by_accept, 1 } };
enum { CASES = sizeof cases / sizeof *cases };
static cpu_set_t all;
// Leaves this process its first CPU alone, or all but the first one if there are others.
static void run_on(int is_first)
{
	cpu_set_t some = all;
	int cpu = 0;
	while (!CPU_ISSET(cpu, &all))
		cpu++;
	CPU_CLR(cpu, &some);
	if (is_first || !CPU_COUNT(&some)) {
		CPU_ZERO(&some);
		CPU_SET(cpu, &some);
	}
	EQ(sched_setaffinity(0, sizeof some, &some), 0);
}
static void client(struct sig told, pid_t waiter, int by_ctl)
{
	run_on(0);
	sched_setscheduler(0, SCHED_OTHER, &(struct sched_param){ 0 });
	if (!by_ctl)
		connect_to(port);
	tell(told);
	await(told);
	if (by_ctl)
		ctl_ask("off", waiter);
	_exit(0);
}
// For each call a client that dies while the call waits, or has called netacc_ctl by then; a signal then, and what the call waits
// for if that did not end it.
static void disturbs(pid_t waiter, int bytes)
{
	sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){ .sched_priority = 1 });
	for (int call = 1; call <= CASES * ROUNDS; call++) {
		int at = (call - 1) / ROUNDS;
		struct sig mine, its;
		sigpair(&mine, &its);
		pid_t kid = fork_child();
		if (!kid)
			client(its, waiter, cases[at].by_ctl);
		await(mine);
		while (*in_call != call)
			usleep(100);
		let_it_block(waiter, waiter);
		siginfo_t dead = { 0 };
		tell(mine);
		while (!dead.si_pid)
			EQ(waitid(P_PID, kid, &dead, WEXITED | WNOWAIT | WNOHANG), 0);
		EQ(kill(waiter, SIGUSR1), 0);
		for (double limit = now() + 0.2 * patience(); *in_call == call && now() < limit;)
			usleep(100);
		if (*in_call == call) {
			if (cases[at].call == by_recv)
				EQ(write(bytes, "x", 1), 1);
			else
				close(connect_to(port));
		}
		reap(kid);
		close(mine.r), close(mine.w), close(its.r), close(its.w);
	}
	_exit(0);
}
// Sends on what comes by the pipe.
static void *sends(void *from)
{
	char c;
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	CHECK(!pthread_sigmask(SIG_BLOCK, &set, NULL));
	while (read(*(int *)from, &c, 1) == 1)
		send_all(conn[1], &c, 1);
	return NULL;
}
int main(void)
{
	t_init();
	in_call = mmap(NULL, sizeof *in_call, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(in_call != MAP_FAILED);
	l = listen_on(&port);
	ep = epoll_create1(0);
	struct epoll_event ev = { EPOLLIN, { .fd = l } };
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, l, &ev), 0);
	struct sigaction sa = { .sa_handler = on };
	EQ(sigaction(SIGUSR1, &sa, NULL), 0);
	pid_t self = getpid();
	EQ(sched_getaffinity(0, sizeof all, &all), 0);
	run_on(1);
	int bytes[2];
	EQ(pipe(bytes), 0);
	pid_t kid = fork_child();
	if (!kid)
		disturbs(self, bytes[1]);
	// It only runs if a signal was lost.
	pthread_t sender;
	EQ(pthread_create(&sender, NULL, sends, &bytes[0]), 0);
	for (int i = 0; i < CASES; i++) {
		int lost = 0;
		for (int round = 1; round <= ROUNDS; round++) {
			int before = handled, c = -1;
			if (cases[i].by_ctl) {
				ctl_ask("on", self);
				pair(conn);
			} else {
				CHECK((c = accept(l, NULL, NULL)) >= 0);
			}
			*in_call = i * ROUNDS + round;
			int r = cases[i].call(), e = errno;
			*in_call = 0;
			if (r < 0) {
				EQ(e, EINTR);
			} else {
				lost++;
				if (cases[i].call != by_recv)
					close(cases[i].call == by_accept ? r : accept(l, NULL, NULL));
			}
			while (handled == before)
				usleep(100);
			if (cases[i].by_ctl)
				close(conn[0]), close(conn[1]);
			else
				close(c);
		}
		// A thread may be so late that its call begins after the signal.
		if (lost > ROUNDS / 4)
			die("%d of %d signals did not end %s", lost, ROUNDS, cases[i].name);
	}
	reap(kid);
	return t_ok("signal_at_wakeup");
}
