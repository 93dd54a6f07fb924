// A child goes on with a connection and uses it in two threads at once, one of which sleeps for bytes and the other one
// for room.
#include "t.h"
#include <pthread.h>
enum { SIZE = 3 << 20 };
static char out[SIZE];
static void *send_it(void *fd)
{
	send_all(*(int *)fd, out, SIZE);
	return NULL;
}
static void both_ways(int fd)
{
	static char in[SIZE];
	pthread_t t;
	EQ(pthread_create(&t, NULL, send_it, &fd), 0);
	recv_all(fd, in, SIZE);
	EQ(pthread_join(t, NULL), 0);
	EQ(memcmp(in, out, SIZE), 0);
}
int main(void)
{
	t_init();
	for (int i = 0; i < SIZE; i++)
		out[i] = i * 7 + i / 251;
	int port, l = listen_on(&port);
	pid_t client = fork_child();
	if (!client) {
		close(l);
		for (int i = 0; i < 5; i++) {
			int fd = connect_to(port);
			both_ways(fd);
			close(fd);
		}
		_exit(0);
	}
	for (int i = 0; i < 5; i++) {
		int fd = accept(l, NULL, NULL);
		CHECK(fd >= 0);
		pid_t k = fork_child();
		if (!k) {
			close(l);
			both_ways(fd);
			_exit(0);
		}
		close(fd);
		reap(k);
	}
	reap(client);
	return t_ok("fork_threads");
}
