// A process of the same user writes arbitrary values where netacc_ctl writes its requests: no byte is lost and the
// process goes on, and afterwards it follows netacc_ctl as before.
#include "ctl.h"
enum { WORDS = 44 };
static volatile int stop;
static void *scribbler(void *x)
{
	int fd = *(int *)x;
	uint64_t seed = 4711;
	for (int n = 0; n < 2000; n++) {
		unsigned char b[WORDS];
		for (int i = 0; i < WORDS; i++)
			b[i] = (seed = seed * 6364136223846793005ull + 1442695040888963407ull) >> 33;
		EQ(pwrite(fd, b, n % 2 ? 1 : WORDS, CTL_AT), n % 2 ? 1 : WORDS);
		usleep(50);
	}
	stop = 1;
	return NULL;
}
int main(void)
{
	t_init();
	int p[2], fd;
	pair(p);
	if ((fd = stats_page()) < 0) {
		CHECK(!has_ctl());
		return t_ok("ctl_wrong_words");
	}
	pthread_t t;
	CHECK(!pthread_create(&t, NULL, scribbler, &fd));
	uint64_t at = 0;
	unsigned char b[3000], c[3000];
	while (!stop) {
		pat_fill(b, sizeof b, at, 1);
		send_all(p[0], b, sizeof b);
		recv_all(p[1], c, sizeof c);
		pat_check(c, sizeof c, at, 1);
		at += sizeof b;
		int q[2];
		pair(q);
		EQ(send(q[0], "x", 1, 0), 1);
		recv_all(q[1], c, 1);
		close(q[0]);
		close(q[1]);
	}
	pthread_join(t, NULL);
	ctl_ask("on", getpid());
	pair(p);
	expect_shm(p[0]);
	return t_ok("ctl_wrong_words");
}
