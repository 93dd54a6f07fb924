// A call sleeps on a connection or a listener, another thread closes the number, and an operator switches the process off and on
// before and after that. As long as the call lasts, the file lives: its peer sees no end, and the call gets what comes.
#include "ctl.h"
enum way { RECV, RECV_ALL, SEND, POLL, ACCEPT, WAYS };
static const char *NAMES[] = { "recv", "recv MSG_WAITALL", "send", "poll", "accept" };
static enum way way;
static int fd, peer, port;
static volatile pid_t tid;
static long res;
static char big[8 << 20], b[16];
static void *sleeper(void *x)
{
	no_sigchld();
	tid = gettid();
	switch (way) {
	case RECV:
		res = recv(fd, b, sizeof b, 0);
		break;
	case RECV_ALL:
		res = recv(fd, b, 8, MSG_WAITALL);
		break;
	case SEND:
		res = send(fd, big, sizeof big, MSG_NOSIGNAL);
		break;
	case POLL:
		res = poll(&(struct pollfd){ fd, POLLIN, 0 }, 1, -1);
		break;
	default:
		res = accept(fd, NULL, NULL);
	}
	return x;
}
// The call has got all that it waits for, and no more.
static void finish(pthread_t t)
{
	long sum = 0, n;
	if (way == ACCEPT) {
		peer = connect_to(port);
		pthread_join(t, NULL);
		CHECK(res >= 0);
		send_all(peer, "late", 4);
		recv_all((int)res, b, 4);
		close((int)res);
		return;
	}
	if (way == SEND) {
		while ((n = recv(peer, b, sizeof b, 0)) > 0)
			for (sum += n; sum < (long)sizeof big && (n = recv(peer, big, sizeof big, MSG_DONTWAIT)) > 0;)
				sum += n;
		EQ(sum, sizeof big);
		pthread_join(t, NULL);
		EQ(res, sizeof big);
		return;
	}
	EQ(ready(peer, POLLIN | POLLRDHUP, 20), 0);
	send_all(peer, way == RECV_ALL ? "cdefgh" : "late", way == RECV_ALL ? 6 : 4);
	pthread_join(t, NULL);
	EQ(res, way == POLL ? 1 : way == RECV_ALL ? 8 : 4);
	CHECK(way == POLL || !memcmp(b, way == RECV_ALL ? "abcdefgh" : "late", (size_t)res));
	CHECK(ready(peer, POLLRDHUP, 5000));
}
static void once(const char *steps)
{
	int p[2];
	pthread_t t;
	if (way == ACCEPT)
		fd = listen_on(&port);
	else {
		pair(p);
		fd = p[0];
		peer = p[1];
		if (way == RECV_ALL)
			send_all(peer, "ab", 2);
	}
	tid = 0;
	CHECK(!pthread_create(&t, NULL, sleeper, NULL));
	while (!tid)
		usleep(100);
	let_it_block(getpid(), tid);
	for (; *steps; steps++) {
		if (*steps == 'c')
			EQ(close(fd), 0);
		else if (has_ctl())
			ctl_call(*steps == '0' ? "off" : "on", getpid(), 0.3, 0);
		usleep(5000);
	}
	finish(t);
	close(peer);
	ctl_ask("on", getpid());
}
int main(void)
{
	static const char *const steps[] = { "0c", "c0", "0c1", "c01", "c010", "01c0" };
	t_init();
	for (way = 0; way < WAYS; way++)
		for (unsigned i = 0; i < sizeof steps / sizeof *steps; i++) {
			fprintf(stderr, "%s, %s\n", NAMES[way], steps[i]);
			once(steps[i]);
		}
	return t_ok("ctl_closed");
}
