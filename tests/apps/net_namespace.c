// A thread goes to another network namespace, where the same address and port belong to another server: a socket
// belongs to the namespace in which it was made, whichever thread uses it.
#include "t.h"
#include <net/if.h>
#include <sched.h>
static int port;
static struct sig here, there;
static int old; // made here, connected there
static void loopback_up(void)
{
	struct ifreq r = { .ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING };
	int s = socket(AF_INET, SOCK_DGRAM, 0);
	EQ(ioctl(s, SIOCSIFFLAGS, &r), 0);
	close(s);
}
static void *serve(void *arg)
{
	int l = *(int *)arg, fd;
	char name = ((int *)arg)[1];
	while ((fd = accept(l, NULL, NULL)) >= 0) {
		send_all(fd, &name, 1);
		close(fd);
	}
	return NULL;
}
static char who(int fd)
{
	char c;
	recv_all(fd, &c, 1);
	close(fd);
	return c;
}
static int dial(int fd)
{
	struct sockaddr_in a = addr4(port);
	return connect(fd, (struct sockaddr *)&a, sizeof a);
}
static void *visitor(void *arg)
{
	(void)arg;
	int kept = socket(AF_INET, SOCK_STREAM, 0);
	if (unshare(CLONE_NEWNET))
		t_skip("net_namespace", "may not make a network namespace");
	loopback_up();
	// No server listens here. But a socket that was made in the old namespace reaches the server there.
	FAILS(dial(socket(AF_INET, SOCK_STREAM, 0)), ECONNREFUSED);
	EQ(dial(kept), 0);
	EQ(who(kept), 'A');
	EQ(dial(old), 0);
	EQ(who(old), 'A');
	struct sockaddr_in a = addr4(port);
	static int mine[2];
	mine[0] = socket(AF_INET, SOCK_STREAM, 0);
	mine[1] = 'B';
	EQ(bind(mine[0], (struct sockaddr *)&a, sizeof a), 0);
	EQ(listen(mine[0], 100), 0);
	pthread_t t;
	EQ(pthread_create(&t, NULL, serve, mine), 0);
	for (int i = 0; i < 50; i++)
		EQ(who(connect_to(port)), 'B');
	tell(there);
	await(there);
	shutdown(mine[0], SHUT_RDWR);
	pthread_join(t, NULL);
	return NULL;
}
int main(void)
{
	t_init();
	sigpair(&here, &there);
	static int ours[2];
	ours[0] = listen_on(&port);
	ours[1] = 'A';
	int before = connect_to(port), peer = accept(ours[0], NULL, NULL);
	expect_shm(before);
	old = socket(AF_INET, SOCK_STREAM, 0);
	pthread_t s, t;
	EQ(pthread_create(&s, NULL, serve, ours), 0);
	EQ(who(connect_to(port)), 'A');
	EQ(pthread_create(&t, NULL, visitor, NULL), 0);
	await(here);
	for (int i = 0; i < 50; i++)
		EQ(who(connect_to(port)), 'A');
	// What was there before goes on.
	send_all(before, "x", 1);
	EQ(who(peer), 'x');
	EQ(recv(before, &(char){ 0 }, 1, 0), 0);
	tell(here);
	pthread_join(t, NULL);
	shutdown(ours[0], SHUT_RDWR);
	pthread_join(s, NULL);
	return t_ok("net_namespace");
}
