// Threads that sleep in accept or poll on one listener, each of which serves one connection until its end. A client that holds
// connections open gets a thread for each: a thread that slept while another one took the client's first connection is woken
// by the next.
#include "t.h"
enum { THREADS = 4, CLIENTS = 400 };
static int l;
static pid_t kid;
static void *serves(void *polls)
{
	for (;;) {
		if (polls)
			CHECK(ready(l, POLLIN, -1));
		int c = accept(l, NULL, NULL);
		char b;
		CHECK(c >= 0);
		while (recv(c, &b, 1, 0) == 1) {
			if (b == 'q') {
				reap(kid);
				_exit(t_ok("accept_blocking"));
			}
			send_all(c, &b, 1);
		}
		close(c);
	}
	return NULL;
}
static void client(int port)
{
	int fd[THREADS];
	for (int i = 0; i < THREADS; i++) {
		char b = 'a' + i;
		fd[i] = connect_to(port);
		send_all(fd[i], &b, 1);
		recv_all(fd[i], &b, 1);
		EQ(b, 'a' + i);
	}
	_exit(0);
}
static void clients(int told)
{
	int port;
	EQ(read(told, &port, sizeof port), sizeof port);
	for (int i = 0; i < CLIENTS; i++) {
		pid_t p = fork_child();
		if (!p)
			client(port);
		reap(p);
	}
	send_all(connect_to(port), "q", 1);
	_exit(0);
}
int main(void)
{
	t_init();
	int port, told[2];
	EQ(pipe(told), 0);
	// No other process has the listener.
	kid = fork_child();
	if (!kid)
		clients(told[0]);
	l = listen_on(&port);
	pthread_t t;
	for (int i = 1; i < THREADS; i++)
		CHECK(!pthread_create(&t, NULL, serves, i % 2 ? &l : NULL));
	EQ(write(told[1], &port, sizeof port), sizeof port);
	serves(NULL);
}
