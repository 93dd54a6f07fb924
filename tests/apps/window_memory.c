// A small budget for windows bounds the memory of connections that nobody reads, no byte is lost for it, and idle connections
// give back what they had. Connections that come when the budget is used up are made by TCP.
#include "t.h"
enum { CONNS = 64, TOTAL = 600000, BUDGET = 1 << 20, IDLE = CONNS * (16 << 10) };
static unsigned char data[TOTAL];
static size_t offer(int fd, size_t from)
{
	size_t at = from;
	for (ssize_t n; at < TOTAL && (n = send(fd, data + at, TOTAL - at, MSG_DONTWAIT)) > 0;)
		at += n;
	return at;
}
static void client(int port, struct sig server)
{
	int fd[CONNS], late;
	size_t sent[CONNS];
	int left = 0;
	for (int i = 0; i < CONNS; i++) {
		fd[i] = connect_to(port);
		if (i == 0 && getenv("NETACC_EXPECT"))
			expect_shm(fd[i]);
	}
	for (int i = 0; i < CONNS; i++) {
		CHECK((sent[i] = offer(fd[i], 0)) > 0);
		left += sent[i] < TOTAL;
	}
	late = connect_to(port);
	if (getenv("NETACC_EXPECT"))
		expect_on(late, "TCP", "memory");
	send_all(late, data, TOTAL / 10);
	tell(server);
	await(server); // it has looked, and reads from now on
	while (left) {
		struct pollfd p[CONNS];
		for (int i = 0; i < CONNS; i++)
			p[i] = (struct pollfd){sent[i] < TOTAL ? fd[i] : -1, POLLOUT, 0};
		CHECK(poll(p, CONNS, -1) > 0);
		for (int i = 0; i < CONNS; i++) {
			if (!p[i].revents)
				continue;
			size_t before = sent[i];
			CHECK((sent[i] = offer(fd[i], before)) > before); // poll has promised room
			left -= sent[i] == TOTAL;
		}
	}
	char c;
	EQ(recv(late, &c, 1, 0), 1); // the server has been idle
	tell(server);
	await(server);
	_exit(0);
}
static int idle(void)
{
	for (int tries = 0; tries < 40; tries++) { // a sleep of this process, or the peer's, gives something back
		if (shared_memory() < IDLE)
			return 1;
		struct pollfd none = {-1, 0, 0};
		poll(&none, 1, 250);
	}
	return 0;
}
int main(int argc, char **argv)
{
	(void)argc;
	if (!getenv("NACC_WINDOW_MEMORY")) {
		setenv("NACC_WINDOW_MEMORY", "1", 1);
		execv("/proc/self/exe", argv);
	}
	t_init();
	pat_fill(data, TOTAL, 0, 3);
	int port, l = listen_on(&port), fd[CONNS + 1];
	struct sig ours, theirs;
	sigpair(&ours, &theirs);
	pid_t kid = fork_child();
	if (!kid)
		client(port, theirs);
	for (int i = 0; i < CONNS; i++)
		CHECK((fd[i] = accept(l, NULL, NULL)) >= 0);
	int late = accept(l, NULL, NULL);
	CHECK(late >= 0);
	await(ours);
	int accelerated = shared_memory() > 0;
	if (getenv("NETACC_EXPECT"))
		CHECK(accelerated);
	CHECK(shared_memory() < 2 * BUDGET);
	tell(ours);
	static unsigned char b[TOTAL];
	for (int i = 0; i < CONNS; i++) {
		recv_all(fd[i], b, TOTAL);
		pat_check(b, TOTAL, 0, 3);
	}
	drain_bytes(late, TOTAL / 10);
	CHECK(idle());
	send_all(late, "x", 1);
	await(ours);
	tell(ours);
	reap(kid);
	return t_ok("window_memory");
}
