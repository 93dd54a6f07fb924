// Connections that an operator's request has taken to kernel TCP come back to shared memory when it is taken back, while
// they are used: by a server with epoll and clients that block, by one that polls, and by threads that sleep. No byte is
// lost, the addresses stay, and what others may have got meanwhile stays with the kernel.
#include "ctl_traffic.h"
enum { ROUNDS = 8 };
// Number of connections of a process that are on a transport, as netacc_ss sees them; -1: it cannot be asked.
static int count_on(pid_t pid, const char *transport)
{
	static char out[1 << 20];
	char cmd[300], *ss = getenv("NETACC_SS"), *expect = getenv("NETACC_EXPECT");
	if (!ss || !expect || strcmp(expect, "shm"))
		return -1;
	snprintf(cmd, sizeof cmd, "LD_PRELOAD= %s -p %d -s sock --json", ss, pid);
	FILE *p = popen(cmd, "r");
	CHECK(p);
	size_t n = fread(out, 1, sizeof out - 1, p);
	out[n] = 0;
	pclose(p);
	int found = 0;
	// The keys are sorted: an object has its state before its transport. Listeners do not count.
	for (char *t = out; (t = strstr(t, "\"ESTAB\"")) && (t = strstr(t, "\"transport\""));) {
		t += strlen("\"transport\"");
		t += strspn(t, ": \"");
		found += !strncasecmp(t, transport, strlen(transport));
	}
	return found;
}
// Waits until the process has at least `want` connections in shared memory. Between two looks it calls `meanwhile`, so that
// the connections are used.
static void await_shm(pid_t pid, int want, void (*meanwhile)(void *), void *x)
{
	for (int ms = 0;; ms++) {
		int n = count_on(pid, "SHM");
		if (n < 0 || n >= want)
			return;
		if (ms > 2000 * (int)patience())
			die("%d of %d connections have come back", n, want);
		if (meanwhile)
			meanwhile(x);
		usleep(1000);
	}
}
static void off_and_on(pid_t server, pid_t clients)
{
	// The server has accepted all of them: one that waits in its queue goes to the kernel's queue.
	await_shm(server, CONNS, NULL, NULL);
	for (int i = 0; i < ROUNDS; i++) {
		pid_t who = i % 2 ? clients : server, other = i % 2 ? server : clients;
		int both = i % 4 >= 2;
		ctl("off", who);
		if (both)
			ctl("off", other);
		if (who == clients && count_on(who, "SHM") > 0)
			die("a process that is off has %d connections in shared memory", count_on(who, "SHM"));
		usleep(i % 3 * 20000);
		ctl("on", who);
		if (both)
			ctl("on", other);
		await_shm(clients, CONNS, NULL, NULL);
		await_shm(server, CONNS, NULL, NULL);
	}
	// Another copy of the library takes over what waits to come back.
	for (int i = 0; i < 2; i++) {
		ctl("upgrade", i ? clients : server);
		await_shm(clients, CONNS, NULL, NULL);
		await_shm(server, CONNS, NULL, NULL);
	}
	ctl("off", server);
}
static void round_trip(void *x)
{
	int *fd = x;
	char b[100], c[100];
	for (int i = 0; i < 2; i++) {
		pat_fill((void *)b, sizeof b, fd[i], 7);
		send_all(fd[i], b, sizeof b);
		recv_all(fd[!i], c, sizeof c);
		CHECK(!memcmp(b, c, sizeof b));
	}
}
static void *reader(void *x)
{
	int *fd = x;
	char b[1];
	no_sigchld();
	recv_all(fd[1], b, 1);
	CHECK(*b == 'x');
	return NULL;
}
static void *poller(void *x)
{
	int *fd = x;
	no_sigchld();
	EQ(ready(fd[1], POLLIN, -1), POLLIN);
	return reader(x);
}
static void addresses(int fd, struct sockaddr_in a[2])
{
	socklen_t n = sizeof a[0];
	EQ(getsockname(fd, (void *)&a[0], &n), 0);
	EQ(getpeername(fd, (void *)&a[1], &n), 0);
}
// Both ends in one process, one of whose threads sleeps in a call all the time.
static void asleep(void *(*sleeper)(void *))
{
	struct sockaddr_in before[2][2], after[2][2];
	int fd[2], l = listen_on(&port);
	fd[0] = connect_to(port);
	CHECK((fd[1] = accept(l, NULL, NULL)) >= 0);
	round_trip(fd);
	for (int i = 0; i < 2; i++)
		addresses(fd[i], before[i]);
	for (int round = 0; round < 3; round++) {
		pthread_t t;
		CHECK(!pthread_create(&t, NULL, sleeper, fd));
		ctl("off", getpid());
		expect_on(fd[0], "TCP", NULL);
		ctl("on", getpid());
		send_all(fd[0], "x", 1);
		pthread_join(t, NULL);
		await_shm(getpid(), 2, round_trip, fd);
		round_trip(fd);
		for (int i = 0; i < 2; i++) {
			addresses(fd[i], after[i]);
			CHECK(!memcmp(before[i], after[i], sizeof after[i]));
		}
	}
	// A child has the kernel's sockets, too, and both go on as one. No thread sleeps: it hears of this at the next call.
	ctl_ask("off", getpid());
	round_trip(fd);
	expect_on(fd[0], "TCP", NULL);
	pid_t child = fork_child();
	if (!child) {
		send_all(fd[0], "child", 5);
		_exit(0);
	}
	reap(child);
	ctl_ask("on", getpid());
	for (int i = 0; i < 50; i++) {
		char b[5];
		if (!i) {
			recv_all(fd[1], b, 5);
			CHECK(!memcmp(b, "child", 5));
		}
		round_trip(fd);
	}
	expect_on(fd[0], "TCP", NULL);
	// The end comes after all bytes.
	send_all(fd[0], "last", 4);
	close(fd[0]);
	char b[9];
	recv_all(fd[1], b, 4);
	EQ(recv(fd[1], b, 9, 0), 0);
	close(fd[1]);
	close(l);
}
// A connection with two numbers is one connection, whichever copy of the library has it; and the time limit of a send
// counts from its beginning.
static void two_numbers(void)
{
	int fd[2];
	pair(fd);
	int other = dup(fd[1]), both[2] = { fd[0], other };
	CHECK(other >= 0);
	for (int round = 0; round < 3; round++) {
		ctl_ask("upgrade", getpid());
		for (int i = 0; i < 100; i++) {
			round_trip(fd);
			round_trip(both);
			usleep(200);
		}
	}
	close(other);
	close(fd[0]);
	close(fd[1]);
	pair(fd);
	round_trip(fd);
	ctl_ask("off", getpid());
	round_trip(fd);
	struct timeval limit = { 0, 50000 };
	static char much[1 << 20];
	EQ(setsockopt(fd[0], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
	ssize_t n;
	while ((n = send(fd[0], much, sizeof much, 0)) > 0)
		;
	EQ(n, -1);
	EQ(errno, EAGAIN);
	ctl_ask("on", getpid());
	close(fd[0]);
	close(fd[1]);
}
int main(void)
{
	t_init();
	lasting_only = 1;
	traffic(off_and_on);
	asleep(reader);
	asleep(poller);
	two_numbers();
	return t_ok("ctl_comeback");
}
