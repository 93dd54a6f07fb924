// A thread sleeps in accept while another one carries out the operator's request and leaves their listener to the kernel. The
// sleeper lets go of the rendezvous, although its number has another file before that thread gets a processor: nobody may
// find a listener in the kernel's table of sockets that serves no one.
#include "ctl.h"
#include <sched.h>
#include <sys/resource.h>
enum { PAIRS = 4, TIMES = 20 };
static int lsn, port, conn[PAIRS][2];
static void *sleeper(void *x)
{
	no_sigchld();
	// The other thread is to have the processor as long as it wants it.
	EQ(setpriority(PRIO_PROCESS, (id_t)gettid(), 19), 0);
	*(volatile pid_t *)x = gettid();
	int s = accept(lsn, NULL, NULL);
	CHECK(s >= 0);
	close(s);
	return NULL;
}
// A thread that hears of the request as well, and sleeps on under a number of the library's afterwards.
static void *reader(void *x)
{
	char b;
	no_sigchld();
	*(volatile pid_t *)x = gettid();
	EQ(recv(conn[0][1], &b, 1, 0), 1);
	return NULL;
}
// Whether the kernel's table has a listener of NetACC's with our port.
static int is_listed(void)
{
	char line[400], end[40];
	int found = 0;
	snprintf(end, sizeof end, "/%d", port);
	FILE *f = fopen("/proc/self/net/unix", "r");
	CHECK(f);
	while (fgets(line, sizeof line, f)) {
		char *name = strstr(line, "@netacc/"), *at = name ? strrchr(name, '/') : NULL;
		unsigned flags = 0;
		if (at && sscanf(line, "%*s %*s %*s %x", &flags) == 1 && flags & 0x10000)
			found |= !strncmp(at, end, strlen(end)) && strchr("+\n", at[strlen(end)]);
	}
	fclose(f);
	return found;
}
int main(void)
{
	t_init();
	cpu_set_t one, all;
	EQ(sched_getaffinity(0, sizeof all, &all), 0);
	CPU_ZERO(&one);
	for (int i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++)
		if (CPU_ISSET(i, &all))
			CPU_SET(i, &one);
	lsn = listen_on(&port);
	EQ(sched_setaffinity(0, sizeof one, &one), 0);
	for (int i = 0; i < TIMES; i++) {
		volatile pid_t tid = 0, second = 0;
		pthread_t a, b;
		for (int n = 0; n < PAIRS; n++)
			pair(conn[n]);
		CHECK(!pthread_create(&a, NULL, sleeper, (void *)&tid));
		while (!tid)
			usleep(100);
		let_it_block(getpid(), tid);
		CHECK(!pthread_create(&b, NULL, reader, (void *)&second));
		while (!second)
			usleep(100);
		let_it_block(getpid(), second);
		ctl("off", getpid());
		double until = now() + 5 * patience();
		while (getenv("NETACC_EXPECT") && is_listed())
			if (now() > until)
				die("round %d: a listener of a process that was switched off is in the kernel's table", i);
		send_all(conn[0][0], "x", 1);
		pthread_join(b, NULL);
		int c = connect_to(port);
		pthread_join(a, NULL);
		close(c);
		for (int n = 0; n < PAIRS; n++)
			close(conn[n][0]), close(conn[n][1]);
		ctl_ask("on", getpid());
	}
	return t_ok("ctl_last_sleeper");
}
