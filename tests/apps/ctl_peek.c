// A look at bytes without taking them (MSG_PEEK) sees all that have arrived, and with MSG_WAITALL waits for all that are wanted, also
// while the process is switched off and on: some of the bytes are in a ring then, and the others in a kernel socket. So do FIONREAD
// and SO_RCVLOWAT, which count the same bytes.
#include "ctl.h"
enum way { AT_ONCE, WAITING, VECTORS, COUNTED, LOW_WATER, WAYS };
static const char *NAMES[] = { "peek", "peek MSG_WAITALL", "peek into two buffers", "FIONREAD", "SO_RCVLOWAT" };
static enum way way;
static int conn[2];
static volatile pid_t tid;
static long res;
static char b[16];
static void *looker(void *x)
{
	int low = 8;
	no_sigchld();
	tid = gettid();
	if (way == WAITING) {
		res = recv(conn[1], b, 8, MSG_PEEK | MSG_WAITALL);
	} else if (way == LOW_WATER) {
		CHECK(!setsockopt(conn[1], SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low));
		CHECK(ready(conn[1], POLLIN, -1) & POLLIN);
		res = recv(conn[1], b, 8, MSG_PEEK);
	}
	return x;
}
static void switched(const char *steps)
{
	for (; has_ctl() && *steps; steps++)
		ctl_call(*steps == '0' ? "off" : "on", getpid(), 0.2, 0);
}
static void once(const char *before, const char *after)
{
	pthread_t t;
	int n = 0;
	pair(conn);
	send_all(conn[0], "abc", 3);
	CHECK(ready(conn[1], POLLIN, 1000));
	tid = 0;
	CHECK(!pthread_create(&t, NULL, looker, NULL));
	while (!tid)
		usleep(100);
	let_it_block(getpid(), tid);
	switched(before);
	send_all(conn[0], "de", 2);
	switched(after);
	send_all(conn[0], "fgh", 3);
	if (way == AT_ONCE || way == VECTORS) {
		struct iovec v[2] = { { b, 4 }, { b + 4, 12 } };
		struct msghdr m = { .msg_iov = v, .msg_iovlen = 2 };
		for (double end = now() + 5; res < 8 && now() < end;)
			res = way == AT_ONCE ? recv(conn[1], b, sizeof b, MSG_PEEK) : recvmsg(conn[1], &m, MSG_PEEK);
	} else if (way == COUNTED) {
		for (double end = now() + 5; n < 8 && now() < end;)
			EQ(ioctl(conn[1], FIONREAD, &n), 0);
		res = n;
		EQ(recv(conn[1], b, 8, MSG_PEEK), 8);
	}
	pthread_join(t, NULL);
	EQ(res, 8);
	CHECK(!memcmp(b, "abcdefgh", 8));
	memset(b, 0, sizeof b);
	recv_all(conn[1], b, 8);
	CHECK(!memcmp(b, "abcdefgh", 8));
	close(conn[0]);
	EQ(recv(conn[1], b, 1, 0), 0);
	close(conn[1]);
	res = 0;
	ctl_ask("on", getpid());
}
int main(void)
{
	static const char *const steps[][2] = { { "", "0" }, { "0", "" }, { "0", "1" }, { "01", "0" } };
	t_init();
	for (way = 0; way < WAYS; way++)
		for (unsigned i = 0; i < sizeof steps / sizeof *steps; i++) {
			fprintf(stderr, "%s, %s %s\n", NAMES[way], steps[i][0], steps[i][1]);
			once(steps[i][0], steps[i][1]);
		}
	return t_ok("ctl_peek");
}
