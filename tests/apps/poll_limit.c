// poll of as many entries as RLIMIT_NOFILE allows, most of which are not open, waits and reports a connection.
#include "t.h"
enum { N = 64 };
static int p[2];
static void *writes(void *x)
{
	(void)x;
	let_it_block(getpid(), getpid());
	send_all(p[1], "x", 1);
	return NULL;
}
int main(void)
{
	t_init();
	struct pollfd f[N + 1];
	struct rlimit l;
	pthread_t t;
	pair(p);
	expect_shm(p[0]);
	EQ(getrlimit(RLIMIT_NOFILE, &l), 0);
	l.rlim_cur = N;
	EQ(setrlimit(RLIMIT_NOFILE, &l), 0);
	for (int at = 0; at < N; at += N - 1) {
		for (int i = 0; i <= N; i++)
			f[i] = (struct pollfd){ i == at ? p[0] : -1, POLLIN, 9 };
		FAILS(poll(f, N + 1, 1), EINVAL);
		EQ(poll(f, N, 0), 0);
		EQ(poll(f, N, 1), 0);
		pthread_create(&t, NULL, writes, NULL);
		EQ(poll(f, N, -1), 1);
		for (int i = 0; i < N; i++)
			EQ(f[i].revents, i == at ? POLLIN : 0);
		char c;
		EQ(recv(p[0], &c, 1, 0), 1);
		pthread_join(t, NULL);
	}
	return t_ok("poll_limit");
}
