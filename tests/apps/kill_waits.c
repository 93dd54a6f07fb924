// The peer, which is the client or the server, is killed by SIGKILL while we block in recv, poll, select, epoll_wait
// (level- and edge-triggered) or send. Its bytes are delivered, and then the end if it had read everything, or
// ECONNRESET if it had unread data.
#include "t.h"
enum { RECV, POLL, SELECT, EPLT, EPET, SEND, KINDS };
static const char *NAME[] = { "recv", "poll", "select", "epoll LT", "epoll ET", "send" };
static struct sig s, m;
static char big[1 << 20];
static int port, l;

static void victim(int server, int unread) // never returns; killed while it sleeps
{
	int fd = server ? accept(l, NULL, NULL) : connect_to(port);
	send_all(fd, "last words", 10);
	if (unread) {
		CHECK(ready(fd, POLLIN, 5000)); // there, and never read
	} else {
		char b[4];
		recv_all(fd, b, 4);
	}
	tell(s);
	for (;;)
		pause();
}
static void *killer(void *x)
{
	let_it_block(getpid(), getpid());
	kill((pid_t)(long)x, SIGKILL);
	return NULL;
}
static void one(int kind, int server, int unread)
{
	sigpair(&s, &m);
	pid_t kid = fork_child();
	if (!kid)
		victim(server, unread);
	int fd = server ? connect_to(port) : accept(l, NULL, NULL), ep = epoll_create1(0);
	char b[32];
	if (kind == 0 && !unread)
		expect_shm(fd);
	send_all(fd, "data", 4);
	await(m);
	struct pollfd pf = { fd, POLLIN | POLLRDHUP, 0 };
	struct epoll_event ev = { EPOLLIN | EPOLLRDHUP | (kind == EPET ? EPOLLET : 0), { 0 } };
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev), 0);
	if (kind != SEND) { // half of the last words now, the rest after its death would make recv not block: take all
		recv_all(fd, b, 10);
		CHECK(!memcmp(b, "last words", 10));
		if (kind == EPET)
			while (epoll_wait(ep, &ev, 1, 0) > 0) {}
	} else {
		nonblock(fd);
		for (int quiet = 0; quiet < 5; quiet++)
			while (send(fd, big, sizeof big, 0) > 0)
				quiet = 0;
		fcntl(fd, F_SETFL, 0);
	}
	int reset = unread || kind == SEND; // what we filled in was never read
	pthread_t t;
	pthread_create(&t, NULL, killer, (void *)(long)kid);
	double t0 = now();
	ssize_t r = 0;
	fd_set rs;
	unsigned rev = 0;
	FD_ZERO(&rs);
	FD_SET(fd, &rs);
	errno = 0;
	switch (kind) {
	case RECV: r = recv(fd, b, sizeof b, 0); break;
	case POLL: EQ(poll(&pf, 1, 10000), 1); rev = pf.revents; break;
	case SELECT: EQ(select(fd + 1, &rs, NULL, NULL, &(struct timeval){ 10, 0 }), 1); CHECK(FD_ISSET(fd, &rs)); break;
	case EPLT: case EPET: ev.events = 0; EQ(epoll_wait(ep, &ev, 1, 10000), 1); rev = ev.events; break;
	case SEND: do r = send(fd, big, sizeof big, MSG_NOSIGNAL); while (r > 0); break;
	}
	int e = errno;
	if (now() - t0 > 3)
		die("%s noticed the death after %.1f s", NAME[kind], now() - t0);
	pthread_join(t, NULL);
	errno = e;
	if (kind == POLL || kind == EPLT || kind == EPET)
		EQ(rev, reset ? POLLIN | POLLRDHUP | POLLERR | POLLHUP : POLLIN | POLLRDHUP);
	if (kind == SEND) {
		CHECK(r == -1 && (e == ECONNRESET || e == EPIPE));
		EQ(recv(fd, b, 10, 0), 10); // delivered in spite of the reset
		CHECK(!memcmp(b, "last words", 10));
	} else {
		if (kind != RECV) {
			r = recv(fd, b, sizeof b, 0);
			e = errno;
		}
		if (reset)
			CHECK(r == -1 && e == ECONNRESET);
		else
			EQ(r, 0);
	}
	EQ(recv(fd, b, sizeof b, 0), 0); // afterwards always the end
	if (!reset) { // the first write meets nobody and is answered by a reset, the next fails
		EQ(send(fd, "x", 1, MSG_NOSIGNAL), 1);
		CHECK(ready(fd, 0, 1000) & POLLHUP);
		FAILS(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
	} else
		FAILS(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
	reap_killed(kid);
	close(fd);
	close(ep);
	close(s.r);
	close(s.w);
	close(m.r);
	close(m.w);
}
int main(void)
{
	t_init();
	l = listen_on(&port);
	for (int kind = 0; kind < KINDS; kind++)
		for (int server = 0; server < 2; server++)
			for (int unread = 0; unread < 2; unread++)
				one(kind, server, unread);
	return t_ok("kill_waits");
}
