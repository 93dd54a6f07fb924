// Every connect to a listener in several epoll instances is reported in each of them, whichever of them a thread waits
// in.
#include "t.h"
#define CONNECTS 30

static int l, port;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static int instance(uint32_t events)
{
	int ep = epoll_create1(0);
	struct epoll_event ev = { .events = events, .data.fd = l };
	CHECK(ep >= 0);
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, l, &ev), 0);
	return ep;
}

static int events(int ep, int ms)
{
	struct epoll_event got[4];
	int n = epoll_wait(ep, got, 4, ms);
	CHECK(n >= 0);
	CHECK(!n || got[0].data.fd == l);
	return n;
}

static void *client(void *unused)
{
	for (int i = 0; i < CONNECTS; i++) {
		int c = connect_to(port);
		char b;
		recv_all(c, &b, 1);
		close(c);
	}
	return unused;
}

struct loop { int turns, level, stop; };
static int answered;

static void *loop(void *arg)
{
	struct loop *o = arg;
	int ep = instance(EPOLLIN | (o->level ? 0 : EPOLLET) | (o->level == 2 ? EPOLLEXCLUSIVE : 0));
	struct epoll_event ev = { .events = EPOLLIN, .data.fd = l }, got;
	ev.data.fd = o->stop;
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, o->stop, &ev), 0);
	for (int done = 0; !done;) {
		if (o->turns)
			pthread_mutex_lock(&turn);
		EQ(epoll_wait(ep, &got, 1, -1), 1);
		done = got.data.fd == o->stop;
		for (int c; !done && (c = accept(l, NULL, NULL)) >= 0;) {
			send_all(c, "x", 1);
			close(c);
			__atomic_add_fetch(&answered, 1, __ATOMIC_RELAXED);
			if (o->level)
				break;
		}
		if (o->turns)
			pthread_mutex_unlock(&turn);
	}
	close(ep);
	return NULL;
}

// Threads with an instance each, all at once or one at a time.
static void threads(int n, int turns, int level)
{
	pthread_t t[4];
	int stop[2];
	CHECK(!pipe(stop));
	l = nonblock(listen_on(&port));
	answered = 0;
	struct loop o = { turns, level, stop[0] };
	for (int i = 0; i < n; i++)
		CHECK(!pthread_create(&t[i], NULL, loop, &o));
	pid_t p = fork_child();
	if (!p) {
		client(NULL);
		_exit(0);
	}
	reap(p);
	CHECK(write(stop[1], "!", 1) == 1);
	for (int i = 0; i < n; i++)
		pthread_join(t[i], NULL);
	EQ(answered, CONNECTS);
	close(l), close(stop[0]), close(stop[1]);
}

// One thread looks at all of them: level, edge and one shot as the kernel has them.
static void all_told(void)
{
	l = nonblock(listen_on(&port));
	int lt = instance(EPOLLIN), et = instance(EPOLLIN | EPOLLET), once = instance(EPOLLIN | EPOLLONESHOT), late;
	for (int i = 0; i < 5; i++) {
		int c = connect_to(port);
		EQ(events(lt, 10000), 1);
		EQ(events(et, 10000), 1);
		EQ(events(once, i ? 0 : 10000), i ? 0 : 1);
		CHECK(ready(l, POLLIN, 10000));
		EQ(events(et, 0), 0);
		EQ(events(lt, 0), 1);
		int d = connect_to(port);
		EQ(events(et, 10000), 1);
		EQ(events(et, 20), 0);
		late = instance(EPOLLIN | EPOLLET);
		EQ(events(late, 10000), 1);
		close(late);
		int s = accept(l, NULL, NULL);
		EQ(events(lt, 10000), 1);
		int t = accept(l, NULL, NULL);
		CHECK(s >= 0 && t >= 0);
		EQ(events(lt, 0), 0);
		EQ(events(et, 0), 0);
		EQ(events(once, 0), 0);
		close(c), close(d), close(s), close(t);
	}
	// The others go, one stays; another client brings another link.
	close(lt);
	close(once);
	pid_t p = fork_child();
	if (!p) {
		close(et);
		client(NULL);
		_exit(0);
	}
	for (int n = 0; n < CONNECTS;) {
		EQ(events(et, 10000), 1);
		for (int s; (s = accept(l, NULL, NULL)) >= 0; n++) {
			send_all(s, "x", 1);
			close(s);
		}
	}
	reap(p);
	close(et);
	close(l);
}

// poll(2) sees what an instance beside it sees, and each wakes for what comes while the other one sleeps.
static void *polls(void *unused)
{
	CHECK(ready(l, POLLIN, 30000) & POLLIN);
	return unused;
}

static void beside_poll(void)
{
	l = nonblock(listen_on(&port));
	int a = instance(EPOLLIN), b = instance(EPOLLIN);
	pthread_t t;
	CHECK(!pthread_create(&t, NULL, polls, NULL));
	pid_t p = fork_child();
	if (!p) {
		int c = connect_to(port);
		char x;
		recv_all(c, &x, 1);
		_exit(0);
	}
	EQ(events(b, 30000), 1);
	EQ(events(a, 30000), 1);
	pthread_join(t, NULL);
	int s = accept(l, NULL, NULL);
	send_all(s, "x", 1);
	reap(p);
	close(s), close(a), close(b), close(l);
}

// Each of two processes has an instance of its own.
static void processes(void)
{
	l = nonblock(listen_on(&port));
	int ep = instance(EPOLLIN), stop[2];
	CHECK(!pipe(stop));
	pid_t server = fork_child();
	if (!server)
		ep = instance(EPOLLIN);
	pid_t p = server ? fork_child() : 1;
	if (!p) {
		close(ep);
		client(NULL);
		_exit(0);
	}
	struct epoll_event ev = { .events = EPOLLIN, .data.fd = stop[0] }, got;
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, stop[0], &ev), 0);
	for (int st, done = 0; !done;) {
		int n = epoll_wait(ep, &got, 1, server ? 20 : -1);
		if (server && waitpid(p, &st, WNOHANG) == p) {
			EQ(st, 0);
			CHECK(write(stop[1], "!", 1) == 1);
			break;
		}
		done = n == 1 && got.data.fd == stop[0];
		int s = n == 1 && !done ? accept(l, NULL, NULL) : -1;
		if (s >= 0) {
			send_all(s, "x", 1);
			close(s);
		}
	}
	if (!server)
		_exit(0);
	reap(server);
	close(ep), close(l), close(stop[0]), close(stop[1]);
}

int main(void)
{
	t_init();
	all_told();
	for (int level = 0; level < 3; level++)
		for (int turns = 0; turns < 2; turns++)
			threads(2 + turns, turns, level);
	beside_poll();
	processes();
	return t_ok("epoll_listener_two");
}
