// A process with many connections has only one thread in a call on a socket, which sleeps in accept. When the process
// is switched off, that thread moves all connections to the kernel, although its listener is one of the first sockets
// to go there.
#include "ctl.h"
enum { PAIRS = 250, TIMES = 40 };
static int lsn, port, conn[PAIRS][2];
static void *sleeper(void *x)
{
	*(volatile pid_t *)x = gettid();
	int s = accept(lsn, NULL, NULL);
	CHECK(s >= 0);
	send_all(s, "late", 4);
	close(s);
	return NULL;
}
static void swaps(void)
{
	char b[4];
	for (int i = 0; i < PAIRS; i++) {
		send_all(conn[i][0], "ask", 4);
		recv_all(conn[i][1], b, 4);
		send_all(conn[i][1], b, 4);
		recv_all(conn[i][0], b, 4);
		CHECK(!memcmp(b, "ask", 4));
	}
}
int main(void)
{
	t_init();
	struct rlimit most;
	EQ(getrlimit(RLIMIT_NOFILE, &most), 0);
	most.rlim_cur = most.rlim_max;
	EQ(setrlimit(RLIMIT_NOFILE, &most), 0);
	lsn = listen_on(&port);
	for (int i = 0; i < PAIRS; i++)
		pair(conn[i]);
	swaps();
	volatile pid_t tid = 0;
	pthread_t t;
	pthread_attr_t small;
	EQ(pthread_attr_init(&small), 0);
	EQ(pthread_attr_setstacksize(&small, 65536), 0);
	CHECK(!pthread_create(&t, &small, sleeper, (void *)&tid));
	while (!tid)
		usleep(100);
	let_it_block(getpid(), tid);
	ctl("off", getpid());
	// However often: the sleeper's stack does not grow.
	for (int i = 0; i < TIMES; i++) {
		ctl("on", getpid());
		ctl("off", getpid());
	}
	int c = connect_to(port);
	char b[4];
	recv_all(c, b, 4);
	CHECK(!memcmp(b, "late", 4));
	pthread_join(t, NULL);
	swaps();
	ctl_ask("on", getpid());
	close(c);
	swaps();
	return t_ok("ctl_in_accept");
}
