// Threads duplicate a number, by dup, dup2 and fcntl, while another one closes it and opens a connection under it again: each
// connection carries its bytes.
#include "t.h"
static int number, over;
static void *duplicates(void *how)
{
	while (!__atomic_load_n(&over, __ATOMIC_SEQ_CST)) {
		int n = __atomic_load_n(&number, __ATOMIC_SEQ_CST);
		if (how) {
			static int mine = -1;
			if (mine < 0)
				mine = open("/dev/null", O_RDONLY);
			dup2(n, mine);
			continue;
		}
		int d = dup(n), f = fcntl(n, F_DUPFD_CLOEXEC, 100);
		if (d >= 0)
			close(d);
		if (f >= 0)
			close(f);
	}
	return NULL;
}
int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	pthread_t t[2];
	for (long i = 0; i < 2; i++)
		pthread_create(&t[i], NULL, duplicates, (void *)i);
	for (int i = 0; i < 3000; i++) {
		char b[2];
		int c = connect_to(port);
		__atomic_store_n(&number, c, __ATOMIC_SEQ_CST);
		int s = accept(l, NULL, NULL);
		CHECK(s >= 0);
		send_all(c, "q", 1);
		recv_all(s, b, 1);
		EQ(b[0], 'q');
		send_all(s, "r", 1);
		recv_all(c, b, 1);
		EQ(b[0], 'r');
		close(c);
		close(s);
	}
	__atomic_store_n(&over, 1, __ATOMIC_SEQ_CST);
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	return t_ok("dup_beside_close");
}
