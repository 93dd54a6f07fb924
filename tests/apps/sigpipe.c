// Every sending call after the peer's close raises SIGPIPE, whose default action kills the process, and fails with
// EPIPE; MSG_NOSIGNAL suppresses the signal.
#include "t.h"
static volatile int pipes;
static void on(int s) { (void)s; pipes++; }
int main(void)
{
	t_init();
	int p[2];
	char c = 'x';
	struct iovec v = { &c, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };
	signal(SIGPIPE, on);
	pair(p);
	EQ(shutdown(p[0], SHUT_WR), 0);
	FAILS(send(p[0], &c, 1, 0), EPIPE);
	EQ(pipes, 1);
	FAILS(write(p[0], &c, 1), EPIPE);
	EQ(pipes, 2);
	FAILS(writev(p[0], &v, 1), EPIPE);
	EQ(pipes, 3);
	FAILS(sendmsg(p[0], &m, 0), EPIPE);
	EQ(pipes, 4);
	FAILS(sendto(p[0], &c, 1, 0, NULL, 0), EPIPE);
	EQ(pipes, 5);
	FAILS(send(p[0], &c, 1, MSG_NOSIGNAL), EPIPE);
	FAILS(sendmsg(p[0], &m, MSG_NOSIGNAL), EPIPE);
	EQ(pipes, 5);
	FAILS(send(p[0], &c, 0, 0), EPIPE); // zero bytes as well
	EQ(pipes, 6);
	close(p[0]);
	close(p[1]);
	// the peer closes: first write succeeds (and is answered by a reset), the second fails
	pair(p);
	close(p[1]);
	CHECK(ready(p[0], POLLRDHUP, 1000));
	EQ(ready(p[0], POLLIN | POLLOUT | POLLRDHUP, 0), POLLIN | POLLOUT | POLLRDHUP);
	EQ(send(p[0], &c, 1, 0), 1);
	CHECK(ready(p[0], 0, 1000) & POLLHUP);
	EQ(ready(p[0], POLLIN | POLLOUT | POLLRDHUP, 0), POLLIN | POLLOUT | POLLRDHUP | POLLERR | POLLHUP);
	EQ(pipes, 6);
	FAILS(send(p[0], &c, 1, 0), EPIPE);
	EQ(pipes, 7);
	EQ(recv(p[0], &c, 1, 0), 0);
	close(p[0]);
	// the error is read by SO_ERROR instead
	pair(p);
	close(p[1]);
	CHECK(ready(p[0], POLLRDHUP, 1000));
	EQ(send(p[0], &c, 1, 0), 1);
	CHECK(ready(p[0], 0, 1000) & POLLHUP);
	int e;
	socklen_t n = sizeof e;
	EQ(getsockopt(p[0], SOL_SOCKET, SO_ERROR, &e, &n), 0);
	EQ(e, EPIPE);
	EQ(getsockopt(p[0], SOL_SOCKET, SO_ERROR, &e, &n), 0);
	EQ(e, 0);
	EQ(ready(p[0], POLLIN | POLLOUT | POLLRDHUP, 0), POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
	FAILS(send(p[0], &c, 1, 0), EPIPE);
	EQ(pipes, 8);
	close(p[0]);
	// closed with unread data: a reset; send gives ECONNRESET without a signal, then EPIPE with one
	for (int first = 0; first < 2; first++) {
		pipes = 0;
		pair(p);
		send_all(p[0], "unread", 6);
		CHECK(ready(p[1], POLLIN, 1000));
		send_all(p[1], "ab", 2);
		close(p[1]);
		CHECK(ready(p[0], 0, 1000) & POLLHUP);
		EQ(ready(p[0], POLLIN | POLLOUT | POLLRDHUP, 0), POLLIN | POLLOUT | POLLRDHUP | POLLERR | POLLHUP);
		if (first) {
			char b[8];
			EQ(recv(p[0], b, 8, 0), 2); // data before the error
			FAILS(recv(p[0], b, 8, 0), ECONNRESET);
		} else {
			FAILS(send(p[0], &c, 1, 0), ECONNRESET);
			EQ(pipes, 0);
			char b[8];
			EQ(recv(p[0], b, 8, 0), 2);
		}
		EQ(recv(p[0], &c, 1, 0), 0);
		FAILS(send(p[0], &c, 1, 0), EPIPE);
		EQ(pipes, 1);
		close(p[0]);
	}
	pid_t kid = fork_child();
	if (!kid) {
		signal(SIGPIPE, SIG_DFL);
		pair(p);
		shutdown(p[0], SHUT_WR);
		send(p[0], &c, 1, 0);
		_exit(0);
	}
	int st;
	EQ(waitpid(kid, &st, 0), kid);
	CHECK(WIFSIGNALED(st) && WTERMSIG(st) == SIGPIPE);
	signal(SIGPIPE, SIG_IGN);
	pair(p);
	shutdown(p[0], SHUT_WR);
	FAILS(send(p[0], &c, 1, 0), EPIPE);
	return t_ok("sigpipe");
}
