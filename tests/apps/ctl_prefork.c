// Processes that share a listener after a fork are switched off and on: every connect is served meanwhile, and
// afterwards all of them serve connects again, not only the first one.
#include "ctl.h"
#include <sys/mman.h>
enum { WORKERS = 3, CONNECTS = 48, ROUNDS = 40 };
// How many connects each worker has served, and how many workers have started.
static volatile int *served;
static pid_t worker[WORKERS];
static void work(int l, int i)
{
	char b[4];
	__sync_fetch_and_add(served + WORKERS, 1);
	for (;;) {
		EQ(ready(l, POLLIN, -1), 1);
		int c = accept(l, NULL, NULL);
		if (c < 0 && errno == EAGAIN)
			continue;
		CHECK(c >= 0);
		recv_all(c, b, 4);
		__sync_fetch_and_add(served + i, 1);
		send_all(c, b, 4);
		close(c);
	}
}
// A client of its own makes some connects, one after the other.
static void round_of(int port, int connects)
{
	for (int i = 0; i < WORKERS; i++)
		served[i] = 0;
	pid_t kid = fork_child();
	if (!kid) {
		for (int i = 0; i < connects; i++) {
			char b[12], back[12];
			int c = connect_to(port);
			snprintf(b, sizeof b, "%03d", i);
			send_all(c, b, 4);
			recv_all(c, back, 4);
			CHECK(!memcmp(b, back, 4));
			close(c);
		}
		_exit(0);
	}
	reap(kid);
	int all = 0;
	for (int i = 0; i < WORKERS; i++)
		all += served[i];
	EQ(all, connects);
}
static int each_serves(void)
{
	for (int i = 0; i < WORKERS; i++)
		if (served[i] == 0)
			return 0;
	return 1;
}
static void each_worker(void (*f)(const char *, pid_t), const char *action)
{
	for (int i = 0; i < WORKERS; i++)
		f(action, worker[i]);
}
int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	// A worker that loses a connection to another one must not sleep in the kernel's accept(2).
	EQ(fcntl(l, F_SETFL, O_NONBLOCK), 0);
	served = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(served != MAP_FAILED);
	for (int i = 0; i < WORKERS; i++)
		if (!(worker[i] = fork_child()))
			work(l, i);
	// A process that was forked just now cannot be switched yet.
	while (served[WORKERS] < WORKERS)
		usleep(100);
	round_of(port, CONNECTS);
	each_worker(ctl, "off");
	round_of(port, CONNECTS);
	each_worker(ctl_ask, "on");
	int rounds = 0;
	// Each worker hears of it when it accepts the next connection.
	do
		round_of(port, CONNECTS);
	while (getenv("NETACC_EXPECT") && !each_serves() && ++rounds < ROUNDS);
	// From here on all of them are found in shared memory.
	usleep(100000);
	round_of(port, CONNECTS);
	if (getenv("NETACC_EXPECT"))
		for (int i = 0; i < WORKERS; i++)
			if (served[i] < CONNECTS / 16)
				die("worker %d serves %d of %d connects", i, served[i], CONNECTS);
	for (int i = 0; i < WORKERS; i++) {
		kill(worker[i], SIGKILL);
		waitpid(worker[i], NULL, 0);
	}
	return t_ok("ctl_prefork");
}
