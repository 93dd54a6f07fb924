// A waiting thread is woken because a client has died, which is nothing to tell the program, and a signal comes before the thread
// gets its CPU: the call ends, as one does that is still asleep. The other process has the same CPU and, if it may, a real-time
// priority, so that both have come when the thread goes on.
#include "t.h"
#include <sched.h>
#include <sys/mman.h>
enum { ROUNDS = 12 };
static int l, ep, port;
static volatile int handled;
// The number of the call that is being made, or 0: written by the waiting process only.
static volatile int *in_call;
static void on(int s) { (void)s; handled++; }
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
static int (*const calls[])(void) = { by_accept, by_poll, by_epoll };
static const char *const names[] = { "accept", "poll", "epoll_wait" };
enum { CALLS = sizeof calls / sizeof *calls };
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
static void client(struct sig told)
{
	run_on(0);
	sched_setscheduler(0, SCHED_OTHER, &(struct sched_param){ 0 });
	connect_to(port);
	tell(told);
	for (;;)
		pause();
}
// For each call a client that dies while the call waits, a signal then, and a connection if that did not end the call.
static void disturbs(pid_t waiter)
{
	sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){ .sched_priority = 1 });
	for (int call = 1; call <= CALLS * ROUNDS; call++) {
		struct sig mine, its;
		sigpair(&mine, &its);
		pid_t kid = fork_child();
		if (!kid)
			client(its);
		await(mine);
		while (*in_call != call)
			usleep(100);
		let_it_block(waiter, waiter);
		siginfo_t dead = { 0 };
		EQ(kill(kid, SIGKILL), 0);
		while (!dead.si_pid)
			EQ(waitid(P_PID, kid, &dead, WEXITED | WNOWAIT | WNOHANG), 0);
		EQ(kill(waiter, SIGUSR1), 0);
		for (double limit = now() + 0.2 * patience(); *in_call == call && now() < limit;)
			usleep(100);
		if (*in_call == call)
			close(connect_to(port));
		reap_killed(kid);
		close(mine.r), close(mine.w), close(its.r), close(its.w);
	}
	_exit(0);
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
	pid_t kid = fork_child();
	if (!kid)
		disturbs(self);
	for (int i = 0; i < CALLS; i++) {
		int lost = 0;
		for (int round = 1; round <= ROUNDS; round++) {
			int before = handled, c = accept(l, NULL, NULL);
			CHECK(c >= 0);
			*in_call = i * ROUNDS + round;
			int r = calls[i](), e = errno;
			*in_call = 0;
			if (r < 0) {
				EQ(e, EINTR);
			} else {
				lost++;
				close(calls[i] == by_accept ? r : accept(l, NULL, NULL));
			}
			while (handled == before)
				usleep(100);
			close(c);
		}
		// A thread may be so late that its call begins after the signal.
		if (lost > ROUNDS / 4)
			die("%d of %d signals did not end %s", lost, ROUNDS, names[i]);
	}
	reap(kid);
	return t_ok("signal_at_wakeup");
}
