// Clients offer promotions that are not accepted, because the server's connection cannot switch: when they have ended,
// nothing of them is left at the server, which sleeps in accept.
#include "t.h"
enum { CLIENTS = 12, FEW = 6 };
static void *talk(void *x)
{
	int fd = (int)(intptr_t)x;
	char c;
	send_all(fd, "x", 1);
	for (int i = 0; i < 20; i++) {
		recv_all(fd, &c, 1);
		send_all(fd, &c, 1);
	}
	EQ(recv(fd, &c, 1, 0), 0);
	close(fd);
	return NULL;
}
static void serve(int l)
{
	for (;;) {
		pthread_t t;
		int fd = accept(l, NULL, NULL);
		CHECK(fd >= 0);
		EQ(fcntl(fd, F_SETOWN, getpid()), 0); // only a kernel socket can do that
		EQ(pthread_create(&t, NULL, talk, (void *)(intptr_t)fd), 0);
		pthread_detach(t);
	}
}
static void one_client(int port)
{
	pid_t k = fork_child();
	if (!k) {
		int fd = connect_to(port);
		char c;
		recv_all(fd, &c, 1);
		for (int i = 0; i < 20; i++) {
			send_all(fd, "y", 1);
			recv_all(fd, &c, 1);
		}
		_exit(0);
	}
	reap(k);
}
int main(void)
{
	t_init();
	int port, l = listen_on(&port), first;
	pid_t server = fork_child();
	if (!server)
		serve(l);
	close(l);
	one_client(port);
	first = descriptors(server);
	for (int i = 0; i < CLIENTS; i++)
		one_client(port);
	double end = now() + 10;
	while (descriptors(server) > first + FEW && now() < end)
		usleep(10000);
	if (descriptors(server) > first + FEW)
		die("the server has %d descriptors, had %d", descriptors(server), first);
	kill(server, SIGKILL);
	reap_killed(server);
	return t_ok("offer_untaken");
}
