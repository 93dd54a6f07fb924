// A program that never sleeps in a call gives the memory of idle connections back, too: it polls without a time-out, and a
// part of its connections rests.
#include "t.h"
enum { CONNS = 64, BURST = 60000, IDLE = CONNS * (16 << 10) };
static unsigned char data[BURST];
static void server(int l)
{
	static unsigned char b[BURST];
	int fd[CONNS];
	for (int i = 0; i < CONNS; i++)
		CHECK((fd[i] = accept(l, NULL, NULL)) >= 0);
	for (int i = 0; i < CONNS; i++) {
		recv_all(fd[i], b, BURST);
		pat_check(b, BURST, 0, 3);
		send_all(fd[i], "k", 1);
	}
	for (char c; recv(fd[0], &c, 1, 0) == 1;)
		send_all(fd[0], &c, 1);
	_exit(0);
}
static char await_busily(int fd)
{
	struct pollfd p = {fd, POLLIN, 0};
	char c;
	while (!poll(&p, 1, 0))
		sched_yield();
	EQ(recv(fd, &c, 1, 0), 1);
	return c;
}
int main(void)
{
	t_init();
	pat_fill(data, BURST, 0, 3);
	int port, l = listen_on(&port), fd[CONNS];
	pid_t kid = fork_child();
	if (!kid)
		server(l);
	for (int i = 0; i < CONNS; i++)
		fd[i] = connect_to(port);
	for (int i = 0; i < CONNS; i++)
		send_all(fd[i], data, BURST);
	for (int i = 0; i < CONNS; i++)
		EQ(await_busily(fd[i]), 'k');
	while (shared_memory() >= IDLE) { // the alarm ends a process that keeps it
		send_all(fd[0], "x", 1);
		EQ(await_busily(fd[0]), 'x');
	}
	for (int i = 0; i < CONNS; i++)
		close(fd[i]);
	reap(kid);
	return t_ok("window_memory_busy");
}
