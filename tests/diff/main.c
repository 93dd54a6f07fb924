// difftest: plays the same random sequence of socket calls on two worlds and compares every result.
//
// Not compared, and why:
//  - how much a non-blocking write takes when buffers fill up: depends on buffer sizes (we compare "something or EAGAIN"
//    and then every byte);
//  - port numbers and descriptor numbers: differ by nature (compared for consistency inside each world);
//  - SO_SNDBUF/SO_RCVBUF never set, TCP_MAXSEG, most of TCP_INFO: depend on the transport;
//  - order of events from epoll_wait: compared as sets, and only the count if fewer slots than events are offered;
//  - a full accept queue: the kernel drops SYNs and retries after a second;
//  - MSG_OOB, MSG_ZEROCOPY, MSG_FASTOPEN, MSG_ERRQUEUE: rare and outside of the fast path (urgent data depends on timing);
//  - edge-triggered events that come in several parts are merged over a few milliseconds when the first look differs;
//  - the edge that the acknowledgement of our own FIN gives to edge-triggered epoll: comes up to 40 ms later;
//  - edges for EPOLLOUT around writes that may or may not fill a buffer, depending on its size (op "fill" surely does);
//  - SIOCOUTQ except its sanity: counts what is not yet acknowledged, and is meaningless in a dead connection;
//  - connecting again after a reset, see facts.c;
//  - over a network, a connect right after the listener's end: it is queued at the other host, and reset there;
//  - use of an already closed descriptor number: it may belong to the other world by then (EBADF is tested with 99999 and -1).
#include "diff.h"

unsigned long long seed_now;
static uint64_t rs;
static const char *only;

uint32_t rnd(void)
{
	rs ^= rs << 13;
	rs ^= rs >> 7;
	rs ^= rs << 17;
	return (uint32_t)(rs >> 16);
}
int pick(int n) { return n > 0 ? (int)(rnd() % (unsigned)n) : 0; }
int chance(int p) { return pick(100) < p; }
int pick_len(int max)
{
	int n;
	switch (pick(8)) {
	case 0: n = pick(4); break;
	case 1: case 2: n = 1 + pick(100); break;
	case 3: case 4: n = 1 + pick(2000); break;
	case 5: n = 1 << pick(18); break;
	case 6: n = pick(20000); break;
	default: n = pick(MAXLEN + 1); break;
	}
	return n > max ? pick(max + 1) : n;
}

static void on_pipe(int s) { (void)s; sigpipes++; }
static void on_alarm(int s)
{
	(void)s;
	report("HANG (cut by alarm)");
	_exit(1);
}

static struct op *TABLE[512];
static int ntable, wsum;
static void add_ops(struct op *o)
{
	for (; o->fn; o++) {
		if (only && strcmp(o->group, only) && strcmp(o->name, only) &&
		    strcmp(o->group, "base")) // ops of group base make the sockets that the others need
			continue;
		TABLE[ntable++] = o;
		wsum += o->weight;
	}
}

static uint64_t spent[512];
static int count[512];

void expect_accelerated(void);

static void first_sockets(void)
{
	static const int fams[] = { AF_INET, AF_INET, AF_INET6, AF_INET6 };
	int k = pick(4);
	int l = make_listener(fams[k], chance(30), k == 3);
	int n = 1 + pick(3);
	for (int i = 0; i < n && l >= 0; i++)
		make_pair(l, chance(50));
}

static long sequence(int ops)
{
	reset_model();
	raw_mode = chance(40) && !by_network(); // over a network the library cannot be as prompt as the kernel
	first_sockets();
	long done = 0;
	for (step = 1; step <= ops; step++) {
		for (int tries = 0; tries < 20; tries++) {
			int r = pick(wsum), i = 0;
			while (r >= TABLE[i]->weight)
				r -= TABLE[i++]->weight;
			settle();
			uint64_t t0 = now_us();
			int did = TABLE[i]->fn();
			spent[i] += now_us() - t0;
			if (did) {
				count[i]++;
				done++;
				break;
			}
		}
	}
	raw_mode = 0;
	settle();
	cleanup_worlds();
	return done;
}

int main(int argc, char **argv)
{
	unsigned long long seed = 1;
	int seqs = 1000, ops = 40, ran = 0, times = 0;
	long total = 0;
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--verbose"))
			verbose = 1;
		else if (!strcmp(argv[i], "--times")) // how often and how long each op ran
			times = 1;
		else if (!strcmp(argv[i], "--lax-et")) // N may report more edges than K, not fewer
			lax_et = 1;
		else if (i + 1 < argc && !strcmp(argv[i], "--seed"))
			seed = strtoull(argv[++i], 0, 10);
		else if (i + 1 < argc && !strcmp(argv[i], "--sequences"))
			seqs = atoi(argv[++i]);
		else if (i + 1 < argc && !strcmp(argv[i], "--ops"))
			ops = atoi(argv[++i]);
		else if (i + 1 < argc && !strcmp(argv[i], "--only"))
			only = argv[++i];
		else {
			fprintf(stderr, "usage: difftest [--seed N] [--sequences N] [--ops N] [--verbose] [--lax-et] [--times] [--only GROUP|OP]\n"
					"groups: conn data shut poll epoll dup opts err block\n");
			return 2;
		}
	}
	slow = patience();
	setvbuf(stdout, NULL, _IOLBF, 0);
	uint32_t x = 12345;
	for (size_t i = 0; i < sizeof(unsigned char) * (65521 + MAXLEN * 2); i++) {
		if (i >= 65521)
			PAT[i] = PAT[i - 65521];
		else {
			x = x * 1664525 + 1013904223;
			PAT[i] = x >> 24;
		}
	}
	struct sigaction sa = { .sa_handler = on_pipe, .sa_flags = SA_RESTART };
	sigaction(SIGPIPE, &sa, NULL);
	sa.sa_handler = on_alarm;
	sigaction(SIGALRM, &sa, NULL);
	expect_accelerated();
	add_ops(OPS_CONN);
	add_ops(OPS_DATA);
	add_ops(OPS_RECV);
	add_ops(OPS_READY);
	add_ops(OPS_EPOLL);
	add_ops(OPS_MISC);
	add_ops(OPS_BLOCK);
	for (; ran < seqs; ran++) {
		seed_now = seed + ran;
		rs = (seed_now + 1) * 0x9E3779B97F4A7C15ull;
		for (int i = 0; i < 8; i++)
			rnd();
		if (verbose)
			printf("sequence seed %llu\n", seed_now);
		alarm(20 * slow);
		total += sequence(ops);
	}
	alarm(0);
	for (int i = 0; times && i < ntable; i++)
		printf("%-22s %7d times %9.1f ms\n", TABLE[i]->name, count[i], spent[i] / 1000.0);
	printf("difftest: %d sequences, %ld operations, no difference\n", ran, total);
	return 0;
}
