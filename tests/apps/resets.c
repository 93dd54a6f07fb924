// Each end gets a reset in the same calls as with kernel TCP, in cases that random sequences of calls have found.
#include "t.h"

// What is sent to a socket that was shut down both ways is answered by a reset, by sendfile as by send.
static void sent_after_the_end(int by_sendfile)
{
	int p[2], f = open("/proc/self/exe", O_RDONLY);
	char b[100];
	pair(p);
	EQ(shutdown(p[0], SHUT_RDWR), 0);
	EQ(by_sendfile ? sendfile(p[1], f, NULL, 100) : send(p[1], b, 100, 0), 100);
	CHECK(ready(p[0], POLLIN, 5000) & POLLHUP);
	FAILS(recv(p[0], b, 100, 0), ECONNRESET);
	EQ(recv(p[0], b, 100, 0), 0);
	close(p[0]);
	close(p[1]);
	close(f);
}

// The sender has closed by the time the reset is checked.
static void closed_after_the_reset(void)
{
	int p[2];
	char b[1];
	pair(p);
	EQ(shutdown(p[0], SHUT_RDWR), 0);
	EQ(send(p[1], b, 1, 0), 1);
	close(p[1]);
	CHECK(ready(p[0], POLLIN, 5000) & POLLHUP);
	FAILS(send(p[0], b, 1, MSG_NOSIGNAL), ECONNRESET);
	close(p[0]);
}

// Another socket under its number ends a connection; what it had not read makes that a reset.
static void replaced_with_unread(void)
{
	int p[2], other = socket(AF_UNIX, SOCK_STREAM, 0);
	char b[4];
	pair(p);
	send_all(p[1], "unread", 6);
	CHECK(ready(p[0], POLLIN, 5000) & POLLIN);
	EQ(dup2(other, p[0]), p[0]);
	CHECK(ready(p[1], POLLRDHUP, 5000) & POLLHUP);
	FAILS(recv(p[1], b, 4, 0), ECONNRESET);
	close(p[1]);
	close(p[0]);
	close(other);
}

// Without room a call that waits does so once, and then says 0 in any case.
static void no_room(void)
{
	int p[2];
	struct timeval t = { .tv_usec = 5000 };
	char b[1];
	pair(p);
	EQ(setsockopt(p[0], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t), 0);
	EQ(recv(p[0], b, 0, 0), 0);
	FAILS(recv(p[0], b, 1, 0), EAGAIN);
	close(p[0]);
	close(p[1]);
}

// Of a connect that did not wait the next one tells that it is there, and only the one after that it was.
static void told_once(void)
{
	int port, l = listen_on(&port), c = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	struct sockaddr_in a = addr4(port);
	struct tcp_info info;
	socklen_t n = sizeof info;
	char b[4];
	FAILS(connect(c, (struct sockaddr *)&a, sizeof a), EINPROGRESS);
	CHECK(ready(c, POLLOUT, 5000) & POLLOUT);
	int s = accept(l, NULL, NULL);
	CHECK(s >= 0);
	// Time for a promotion, where that is what is tested: some calls.
	for (int i = 0; i < 20; i++) {
		send_all(c, "ping", 4);
		recv_all(s, b, 4);
		EQ(getsockopt(s, IPPROTO_TCP, TCP_INFO, &info, &n), 0);
		EQ(info.tcpi_state, TCP_ESTABLISHED);
		EQ(getsockopt(c, IPPROTO_TCP, TCP_INFO, &info, &n), 0);
		EQ(info.tcpi_state, TCP_ESTABLISHED);
	}
	EQ(connect(c, (struct sockaddr *)&a, sizeof a), 0);
	FAILS(connect(c, (struct sockaddr *)&a, sizeof a), EISCONN);
	close(c);
	close(s);
	close(l);
}

int main(void)
{
	t_init();
	sent_after_the_end(0);
	sent_after_the_end(1);
	closed_after_the_reset();
	replaced_with_unread();
	no_room();
	told_once();
	return t_ok("resets");
}
