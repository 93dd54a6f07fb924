// While one thread forks again and again, others open connections, duplicate them, close the first number and send;
// some connections have the kernel send signals from the start. The kernel's file under each number is always the right
// one, so every byte and every end arrives.
#include "t.h"
enum { TALKERS = 2, ROUNDS = 1500 };
static int port, over;
static void *forks(void *arg)
{
	(void)arg;
	while (!__atomic_load_n(&over, __ATOMIC_SEQ_CST)) {
		pid_t c = fork_child();
		if (!c)
			_exit(0);
		reap(c);
	}
	return NULL;
}
static void *echoes(void *arg)
{
	char b[100];
	ssize_t n;
	int s = (int)(long)arg;
	while ((n = recv(s, b, sizeof b, 0)) > 0)
		send_all(s, b, n);
	EQ(n, 0);
	EQ(shutdown(s, SHUT_WR), 0);
	close(s);
	return NULL;
}
static void *accepts(void *arg)
{
	int l = (int)(long)arg;
	for (int i = 0; i < TALKERS * ROUNDS; i++) {
		pthread_t t;
		int s = accept4(l, NULL, NULL, SOCK_CLOEXEC);
		CHECK(s >= 0);
		CHECK(!pthread_create(&t, NULL, echoes, (void *)(long)s));
		CHECK(!pthread_detach(t));
	}
	return NULL;
}
static void *talks(void *arg)
{
	char b[100];
	(void)arg;
	for (int i = 0; i < ROUNDS; i++) {
		int s = connect_to(port);
		if (i % 2)
			EQ(fcntl(s, F_SETOWN, getpid()), 0);
		for (int k = 0; k < 3; k++) {
			int n = fcntl(s, F_DUPFD_CLOEXEC, k == 1 ? 300 : 3);
			CHECK(n >= 0);
			close(s);
			s = n;
			send_all(s, "byte by byte", 12);
			EQ(recv(s, b, 12, MSG_WAITALL), 12);
			CHECK(!memcmp(b, "byte by byte", 12));
		}
		EQ(shutdown(s, SHUT_WR), 0);
		EQ(recv(s, b, 1, 0), 0);
		close(s);
	}
	return NULL;
}
int main(void)
{
	t_init();
	pthread_t f, a, t[TALKERS];
	int l = listen_on(&port);
	CHECK(!pthread_create(&a, NULL, accepts, (void *)(long)l));
	CHECK(!pthread_create(&f, NULL, forks, NULL));
	for (int i = 0; i < TALKERS; i++)
		CHECK(!pthread_create(&t[i], NULL, talks, NULL));
	for (int i = 0; i < TALKERS; i++)
		CHECK(!pthread_join(t[i], NULL));
	__atomic_store_n(&over, 1, __ATOMIC_SEQ_CST);
	CHECK(!pthread_join(f, NULL));
	CHECK(!pthread_join(a, NULL));
	return t_ok("fork_numbers");
}
