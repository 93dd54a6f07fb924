// Every call on connections works in a thread with the smallest stack that pthread_attr_setstacksize(3) permits on
// x86-64, 16 KiB, and leaves a quarter of it for an allocator that needs more than libc's.
#include "t.h"

#define STACK 16384
#define LEFT 4096

static unsigned char *stack;
static int listener, port, p[2], ep, deepest;
static char data[200000];

static void make(void) { listener = listen_on(&port); }
static void join(void) { p[0] = connect_to(port); }
static void take(void)
{
	p[1] = accept(listener, NULL, NULL);
	CHECK(p[1] >= 0);
}
static void little(void)
{
	EQ(send(p[0], data, 100, 0), 100);
	EQ(recv(p[1], data, 100, MSG_WAITALL), 100);
}
static void much(void)
{
	EQ(send(p[0], data, sizeof data, MSG_DONTWAIT), sizeof data);
	EQ(recv(p[1], data, sizeof data, MSG_WAITALL), sizeof data);
}
static void vectors(void)
{
	struct iovec v[2] = { { data, 10 }, { data + 10, 10 } };
	struct msghdr m = { .msg_iov = v, .msg_iovlen = 2 };
	EQ(sendmsg(p[0], &m, 0), 20);
	EQ(recvmsg(p[1], &m, 0), 20);
	EQ(writev(p[0], v, 2), 20);
	EQ(readv(p[1], v, 2), 20);
}
static void waits(void)
{
	struct timeval t = { 0, 10000 };
	CHECK(!setsockopt(p[1], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
	FAILS(recv(p[1], data, 1, 0), EAGAIN);
	struct timeval none = { 0, 0 };
	CHECK(!setsockopt(p[1], SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none));
}
static void polls(void)
{
	struct pollfd w[2] = { { p[1], POLLIN, 0 }, { listener, POLLIN, 0 } };
	EQ(poll(w, 2, 10), 0);
	fd_set set;
	FD_ZERO(&set);
	FD_SET(p[1], &set);
	struct timeval t = { 0, 10000 };
	EQ(select(p[1] + 1, &set, NULL, NULL, &t), 0);
}
static void epolls(void)
{
	struct epoll_event ev = { EPOLLIN | EPOLLET, { .fd = 0 } };
	ep = epoll_create1(0);
	CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, p[1], &ev) && !epoll_ctl(ep, EPOLL_CTL_ADD, listener, &ev));
	EQ(epoll_wait(ep, &ev, 1, 10), 0);
	EQ(send(p[0], data, 1, 0), 1);
	EQ(epoll_wait(ep, &ev, 1, -1), 1);
	EQ(recv(p[1], data, 1, 0), 1);
	close(ep);
}
static void duplicates(void)
{
	int d = dup(p[0]);
	CHECK(d >= 0 && !close(d));
}
static void options(void)
{
	int on = 1;
	socklen_t n = sizeof on;
	CHECK(!setsockopt(p[0], IPPROTO_TCP, TCP_NODELAY, &on, n) && !getsockopt(p[0], SOL_SOCKET, SO_ERROR, &on, &n));
}
static void forks(void)
{
	pid_t c = fork();
	CHECK(c >= 0);
	if (!c)
		_exit(0);
	reap(c);
}
static void ends(void) { CHECK(!shutdown(p[0], SHUT_WR) && !close(p[0]) && !close(p[1]) && !close(listener)); }

static void *thread(void *call)
{
	((void (*)(void))call)();
	return NULL;
}
// A new stack, of which the part that was never used can be recognised.
static void on_small_stack(const char *name, void (*call)(void))
{
	pthread_attr_t a;
	pthread_t t;
	memset(stack, 0xa5, STACK);
	CHECK(!pthread_attr_init(&a) && !pthread_attr_setstack(&a, stack, STACK));
	CHECK(!pthread_create(&t, &a, thread, (void *)call) && !pthread_join(t, NULL));
	int left = 0;
	while (left < STACK && stack[left] == 0xa5)
		left++;
	if (left < LEFT)
		die("%s leaves %d bytes of the stack", name, left);
	if (STACK - left > deepest)
		deepest = STACK - left;
}
#define ON_SMALL_STACK(call) on_small_stack(#call, call)

int main(void)
{
	t_init();
	long min = sysconf(_SC_THREAD_STACK_MIN);
	if (min > STACK)
		t_skip("small_stack", "this machine's threads need more");
	CHECK(!posix_memalign((void **)&stack, 4096, STACK));
	ON_SMALL_STACK(make);
	ON_SMALL_STACK(join);
	ON_SMALL_STACK(take);
	for (int round = 0; round < 2; round++) {
		// The second time as a family, after a fork.
		ON_SMALL_STACK(little);
		ON_SMALL_STACK(much);
		ON_SMALL_STACK(vectors);
		ON_SMALL_STACK(waits);
		ON_SMALL_STACK(polls);
		ON_SMALL_STACK(epolls);
		ON_SMALL_STACK(duplicates);
		ON_SMALL_STACK(options);
		ON_SMALL_STACK(forks);
	}
	ON_SMALL_STACK(ends);
	printf("at most %d of %d bytes\n", deepest, STACK);
	return t_ok("small_stack");
}
