// A thread that accepts a connection may use the other end at once, although its connect(2) in another thread has not
// returned.
#include "t.h"
#include <pthread.h>
static int cli, port;
static pthread_barrier_t go;
static void *caller(void *x)
{
	struct sockaddr_in a = addr4(port);
	for (int i = 0; i < *(int *)x; i++) {
		pthread_barrier_wait(&go);
		EQ(connect(cli, (struct sockaddr *)&a, sizeof a), 0);
		pthread_barrier_wait(&go);
	}
	return NULL;
}
int main(void)
{
	t_init();
	int rounds = 3000, l = listen_on(&port);
	pthread_t t;
	pthread_barrier_init(&go, NULL, 2);
	EQ(pthread_create(&t, NULL, caller, &rounds), 0);
	for (int i = 0; i < rounds; i++) {
		char b;
		cli = socket(AF_INET, SOCK_STREAM, 0);
		pthread_barrier_wait(&go);
		int s = accept(l, NULL, NULL);
		if (i & 1) {
			EQ(send(cli, "x", 1, 0), 1);
			EQ(recv(s, &b, 1, 0), 1);
		}
		close(s);
		EQ(ready(cli, POLLIN, 1000), POLLIN);
		EQ(recv(cli, &b, 1, 0), 0);
		pthread_barrier_wait(&go);
		close(cli);
	}
	pthread_join(t, NULL);
	return t_ok("connect_seen");
}
