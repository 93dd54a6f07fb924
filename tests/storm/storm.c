// The processes of the storm; ./run starts and kills them. storm serve NUMBER KIND | call | go-on NUMBERS...
#include "conv.h"
#include <arpa/inet.h>
#include <netinet/in.h>

struct ledger *L;
int me, box, ledger_fd, acts_allowed, patience;
static struct in_addr address; // of the servers
char *self = "/proc/self/exe";

static int number(const char *name)
{
	const char *v = getenv(name);
	if (!v)
		exit(5);
	return atoi(v);
}
// Of server n. Its port is said when it listens; the first one that is born may choose any.
static struct sockaddr_in place(int port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = address };
}
static void run_in_thread(struct conv *c)
{
	pthread_t t;
	pthread_attr_t a;
	struct conv *copy = malloc(sizeof *copy);
	void *drive(void *x);
	*copy = *c;
	pthread_attr_init(&a);
	pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
	if (pthread_create(&t, &a, drive, copy))
		drive(copy);
	pthread_attr_destroy(&a);
}
static word running; // conversations of this process
void *drive(void *x)
{
	conv_drive(x);
	free(x);
	running--;
	return NULL;
}
static void *adopt(void *x)
{
	struct conv c;
	(void)x;
	for (;;) {
		if (box_take(&c))
			continue;
		running++;
		run_in_thread(&c);
	}
	return NULL;
}
static void start_adopting(void)
{
	pthread_t t;
	pthread_create(&t, NULL, adopt, NULL);
}

static int listener(int n, int shared)
{
	int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
	int first = number("STORM_PORT"); // 0: any
	struct sockaddr_in a = place(L->port[n] || !first ? L->port[n] : first + n);
	socklen_t len = sizeof a;
	setsockopt(s, SOL_SOCKET, shared ? SO_REUSEPORT : SO_REUSEADDR, &one, sizeof one);
	for (int tries = 0; bind(s, (struct sockaddr *)&a, len); tries++) {
		if (tries == 1000) {
			failed(NULL, "cannot bind port %d", (int)L->port[n]);
			exit(1);
		}
		usleep(10000); // connections of the one before are still there
	}
	if (listen(s, 1000))
		exit(1);
	getsockname(s, (struct sockaddr *)&a, &len);
	L->port[n] = ntohs(a.sin_port);
	return s;
}
static void serve_by_threads(int l)
{
	struct conv c;
	for (;;) {
		int fd = accept4(l, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0) {
			if (errno != EINTR && errno != ECONNABORTED && errno != EMFILE)
				failed(NULL, "accept");
			usleep(1000);
			continue;
		}
		conv_accepted(&c, fd);
		running++;
		run_in_thread(&c);
	}
}
static void serve_by_loop(int l)
{
	// What is over is kept a while: an event for it would be one too many.
	enum { KEPT = 4096 };
	static struct conv *over[KEPT];
	unsigned ended = 0;
	int ep = epoll_create1(EPOLL_CLOEXEC);
	struct epoll_event ev = { .events = EPOLLIN };
	fcntl(l, F_SETFL, O_NONBLOCK);
	epoll_ctl(ep, EPOLL_CTL_ADD, l, &ev);
	for (;;) {
		struct epoll_event got[64];
		int n = epoll_wait(ep, got, 64, -1);
		for (int i = 0; i < n; i++) {
			struct conv *c = got[i].data.ptr;
			for (int k = 0; k < i; k++)
				if (got[k].data.ptr == c)
					failed(c, "reported twice, %x and %x", got[k].events, got[i].events);
			if (c && c->fd < 0) {
				failed(c, "event %x of %d after the end", got[i].events, n);
				continue;
			}
			if (!c) {
				int fd = accept4(l, NULL, NULL, SOCK_CLOEXEC);
				if (fd < 0)
					continue;
				c = malloc(sizeof *c);
				conv_accepted(c, fd);
				c->ep = ep;
			} else if (conv_step(c) != AGAIN) {
				free(over[ended % KEPT]);
				over[ended++ % KEPT] = c;
				c->fd = -1;
				continue;
			}
			ev = (struct epoll_event){ .events = conv_wants(c), .data.ptr = c };
			conv_register(c, &ev);
		}
	}
}
static void workers(int l, int which, int count)
{
	for (int i = 0;; i++) {
		if (i >= count)
			while (wait(NULL) < 0)
				;
		int n = born(me);
		if (!fork()) {
			me = n;
			L->proc[me].serves = which + 1;
			L->proc[me].pid = getpid();
			signal(SIGCHLD, SIG_IGN);
			start_adopting();
			serve_by_threads(l);
		}
	}
}
static void serve(int n, const char *kind)
{
	int l = listener(n, !strcmp(kind, "shared"));
	if (!strcmp(kind, "workers"))
		workers(l, n, 3);
	if (!strcmp(kind, "shared"))
		L->proc[me].serves = n + 1;
	signal(SIGCHLD, SIG_IGN);
	if (!strcmp(kind, "loop"))
		serve_by_loop(l);
	start_adopting();
	serve_by_threads(l);
}

// A connection to a server that may be just about to be born again.
static int dial(int n)
{
	struct sockaddr_in a = place(L->port[n]);
	for (int tries = 0; tries < patience / 4; tries++) {
		int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd >= 0 && !connect(fd, (struct sockaddr *)&a, sizeof a))
			return fd;
		if (fd >= 0)
			close(fd);
		usleep(10000);
	}
	return -1;
}
static void *call(void *x)
{
	uint64_t seed = (uint64_t)(uintptr_t)x * 1000003 + getpid();
	struct conv c;
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	seed ^= t.tv_nsec;
	while (!L->stop) {
		int slot = atomic_fetch_add(&L->slots, 1);
		if (slot >= SLOTS)
			break;
		struct kept k = { .slot = slot, .side = CLIENT };
		draw(&seed);
		k.seed = seed;
		L->slot[slot].kills[SERVER] = kills_now();
		L->slot[slot].holder[CLIENT] = me;
		L->slot[slot].engine[CLIENT] = me;
		int server = draw(&seed) % SERVERS;
		while (!L->port[server])
			server = draw(&seed) % SERVERS;
		L->slot[slot].server = server;
		L->slot[slot].killed_before = L->killed_of[server];
		int fd = dial(server);
		if (fd < 0) {
			failed(NULL, "no connection to server %d in time", server);
			break;
		}
		conv_open(&c, fd, k);
		conv_drive(&c);
	}
	return NULL;
}
static void clients(void)
{
	enum { THREADS = 3 };
	pthread_t t[THREADS];
	signal(SIGCHLD, SIG_IGN);
	start_adopting();
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&t[i], NULL, call, (void *)i);
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	// What others pass us comes after that as well; ./run knows when everything is over.
	L->resting++;
	for (;;)
		pause();
}
int main(int argc, char **argv)
{
	ledger_fd = number("STORM_LEDGER");
	box = number("STORM_BOX");
	acts_allowed = number("STORM_ACTS");
	patience = number("STORM_PATIENCE");
	const char *at = getenv("STORM_ADDRESS");
	if (!at || !inet_aton(at, &address))
		return 5;
	L = mmap(NULL, sizeof *L, PROT_READ | PROT_WRITE, MAP_SHARED, ledger_fd, 0);
	if (L == MAP_FAILED || argc < 2)
		return 2;
	signal(SIGPIPE, SIG_IGN);
	if (argc == 12 && !strcmp(argv[1], "go-on")) {
		uint64_t n[10];
		for (int i = 0; i < 10; i++)
			n[i] = strtoull(argv[i + 2], NULL, 10);
		signal(SIGCHLD, SIG_IGN);
		me = n[1];
		L->proc[me].pid = getpid();
		struct conv c;
		conv_open(&c, n[0], (struct kept){ .slot = n[2], .side = n[3], .begun = n[4], .ended = n[5], .next = n[6],
						   .seed = n[7], .sent = n[8], .got = n[9] });
		conv_drive(&c);
		L->proc[me].pid = -1;
		return 0;
	}
	me = born(0);
	L->proc[me].pid = getpid();
	if (argc == 4 && !strcmp(argv[1], "serve"))
		serve(atoi(argv[2]), argv[3]);
	if (argc == 2 && !strcmp(argv[1], "call"))
		clients();
	return 2;
}
