// A call that does not sleep is not ended by a signal, whenever that comes: bytes that are there are read, a socket with
// O_NONBLOCK and a call with MSG_DONTWAIT say EAGAIN, and a non-blocking accept finds its connection.
#include "t.h"
#include <sys/time.h>
enum { ROUNDS = 4000, BYTES = 100 };
static volatile sig_atomic_t hits;
static void on(int s) { (void)s; hits++; }
// One byte more than there is, by each call that does not sleep.
static void nothing_there(int fd)
{
	char b[BYTES];
	struct iovec v = { b, sizeof b };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };
	FAILS(recv(fd, b, sizeof b, MSG_DONTWAIT), EAGAIN);
	FAILS(recvmsg(fd, &m, MSG_DONTWAIT), EAGAIN);
	FAILS(recv(fd, b, sizeof b, MSG_DONTWAIT | MSG_PEEK), EAGAIN);
}
static void talk(int a, int b, int rounds)
{
	for (int i = 0; i < rounds; i++) {
		char bytes[BYTES] = { 1 };
		EQ(send(a, bytes, sizeof bytes, i % 2 ? MSG_DONTWAIT : 0), sizeof bytes);
		// by the kernel the bytes may come a little later
		while (recv(b, bytes, sizeof bytes, MSG_DONTWAIT | MSG_PEEK) != sizeof bytes)
			EQ(errno, EAGAIN);
		EQ(recv(b, bytes, sizeof bytes, 0), sizeof bytes);
		nothing_there(b);
	}
}
int main(void)
{
	t_init();
	struct sigaction sa = { .sa_handler = on };
	EQ(sigaction(SIGPROF, &sa, NULL), 0);
	int port, l = listen_on(&port), least = 1;
	struct itimerval every = { { 0, 200 }, { 0, 200 } };
	for (int kind = 0; kind < 3; kind++) {
		// accelerated, then one of the kernel's because of an option that matters to packets only, then non-blocking
		int a = socket(AF_INET, SOCK_STREAM, 0);
		struct sockaddr_in at = addr4(port);
		if (kind == 1)
			EQ(setsockopt(a, IPPROTO_IP, IP_MINTTL, &least, sizeof least), 0);
		EQ(connect(a, (struct sockaddr *)&at, sizeof at), 0);
		int b = accept(l, NULL, NULL);
		CHECK(b >= 0);
		if (kind == 2)
			nonblock(a), nonblock(b);
		EQ(setitimer(ITIMER_PROF, &every, NULL), 0);
		talk(a, b, ROUNDS);
		EQ(setitimer(ITIMER_PROF, &(struct itimerval){ 0 }, NULL), 0);
		close(a);
		close(b);
	}
	nonblock(l);
	EQ(setitimer(ITIMER_PROF, &every, NULL), 0);
	for (int i = 0; i < ROUNDS / 10; i++) {
		FAILS(accept(l, NULL, NULL), EAGAIN);
		int c = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), s;
		struct sockaddr_in at = addr4(port);
		if (connect(c, (struct sockaddr *)&at, sizeof at))
			EQ(errno, EINPROGRESS);
		while ((s = accept(l, NULL, NULL)) < 0)
			EQ(errno, EAGAIN);
		talk(c, s, 1);
		close(c);
		close(s);
	}
	EQ(setitimer(ITIMER_PROF, &(struct itimerval){ 0 }, NULL), 0);
	CHECK(hits > 0);
	return t_ok("signal_ready");
}
