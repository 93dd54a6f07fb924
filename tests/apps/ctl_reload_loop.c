// Rules are loaded anew a thousand times while threads connect by them: each connection works, and the memory of the
// process does not grow.
#include "ctl.h"
#include <sys/prctl.h>
enum { TIMES = 1000, FIRST = 100, RULES = 60, THREADS = 2 };
static int lsn, port;
static volatile int stop;
static volatile long made;
static void *connects(void *x)
{
	(void)x;
	while (!stop) {
		int c = connect_to(port), s = accept(lsn, NULL, NULL);
		CHECK(s >= 0);
		// Another thread may have accepted it.
		send_all(c, "c", 1);
		char b;
		recv_all(s, &b, 1);
		EQ(b, 'c');
		close(s);
		close(c);
		__atomic_add_fetch(&made, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}
// Kilobytes of memory of its own that the process uses (proc_pid_status(5)).
static long used(void)
{
	char line[200];
	long kb = -1;
	FILE *f = fopen("/proc/self/status", "r");
	CHECK(f);
	while (fgets(line, sizeof line, f))
		sscanf(line, "RssAnon: %ld kB", &kb);
	fclose(f);
	return kb;
}
static uint32_t word(int page, off_t at)
{
	uint32_t word;
	EQ(pread(page, &word, sizeof word, at), (ssize_t)sizeof word);
	return word;
}
static void reload(int page, unsigned char count)
{
	EQ(pwrite(page, &count, 1, CTL_RELOAD_AT), 1);
	while (word(page, CTL_ANSWERED_AT) != count)
		usleep(20);
	EQ(word(page, CTL_ANSWER_AT), 1);
}
int main(void)
{
	const char *conf = own_rules();
	t_init();
	// Where the kernel gives pages of 2 MiB by itself, one of which only a part is used would pass for growth.
	prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	lsn = listen_on(&port);
	int page = stats_page();
	if (page < 0 || !getenv("NETACC_EXPECT")) {
		unlink(conf);
		return t_ok("ctl_reload_loop");
	}
	// Three long sets of different lengths: one leaves the listener to the kernel, one the connects.
	static char sets[3][RULES * 100];
	for (int i = 0; i < RULES; i++)
		for (int n = 0; n < 3; n++)
			if (i >= n * 10)
				sprintf(sets[n] + strlen(sets[n]), "use=shm connect=10.0.%d.%d:%d-65535 program=*\n", n, i, i);
	sprintf(sets[0] + strlen(sets[0]), "use=tcp listen=%d\n", port);
	sprintf(sets[1] + strlen(sets[1]), "use=tcp connect=127.0.0.1:%d\n", port);
	pthread_t t[THREADS];
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&t[i], NULL, connects, NULL));
	long before = 0, made_before = 0;
	for (int n = 0; n < TIMES; n++) {
		if (n == FIRST) {
			before = used();
			made_before = made;
		}
		// A client that reaches the rendezvous just as the listener is left to the kernel looks again at its next call
		// only, so that is rare.
		write_rules(conf, sets[n % 50 ? 1 + n % 2 : 0]);
		reload(page, (unsigned char)(n + 1));
	}
	long after = used();
	CHECK(made > made_before);
	// One set has some 5 KiB of text, and 60 rules. Links take memory as well, and how many there are at once differs.
	if (after - before > 3 * 1024)
		die("%ld KiB more after %d reloads", after - before, TIMES - FIRST);
	write_rules(conf, "");
	reload(page, (unsigned char)(TIMES + 1));
	stop = 1;
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	int c = connect_to(port), s = accept(lsn, NULL, NULL);
	expect_shm(c);
	close(c);
	close(s);
	unlink(conf);
	return t_ok("ctl_reload_loop");
}
