// When RLIMIT_NOFILE is exhausted, socket, accept and dup fail with EMFILE, and the waiting connection stays and is
// accepted after a close.
#include "t.h"
int main(void)
{
	t_init();
	int port, l = listen_on(&port), p[2];
	pair(p);
	expect_shm(p[0]);
	int c = connect_to(port), c2 = connect_to(port);
	struct rlimit rl = { 64, 64 };
	EQ(setrlimit(RLIMIT_NOFILE, &rl), 0);
	int fill[64], n = 0;
	while ((fill[n] = dup(0)) >= 0 || (fill[n] = open("/dev/null", O_RDONLY)) >= 0)
		n++;
	EQ(errno, EMFILE);
	CHECK(n > 0);
	for (int i = 0; i < 3; i++) {
		FAILS(accept(l, NULL, NULL), EMFILE);
		EQ(ready(l, POLLIN, 0), POLLIN); // still waiting
		FAILS(socket(AF_INET, SOCK_STREAM, 0), EMFILE);
		FAILS(dup(p[0]), EMFILE);
		FAILS(fcntl(p[0], F_DUPFD, 0), EMFILE);
		FAILS(epoll_create1(0), EMFILE);
	}
	char b[8]; // existing connections go on, blocking waits as well
	for (int i = 0; i < 100; i++) {
		send_all(p[0], "abc", 3);
		CHECK(ready(p[1], POLLIN, 1000));
		recv_all(p[1], b, 3);
	}
	int gone = fill[--n];
	close(gone);
	int s = accept(l, NULL, NULL);
	EQ(s, gone); // the number that became free
	FAILS(accept(l, NULL, NULL), EMFILE);
	send_all(c, "one", 3);
	recv_all(s, b, 3);
	close(fill[--n]);
	int s2 = accept(l, NULL, NULL);
	CHECK(s2 >= 0);
	send_all(s2, "two", 3);
	recv_all(c2, b, 3);
	FAILS(dup2(p[0], 64), EBADF);
	FAILS(fcntl(p[0], F_DUPFD, 64), EINVAL);
	// connect needs no further descriptor
	close(fill[--n]);
	int x = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in a = addr4(port);
	CHECK(x >= 0);
	FAILS(dup(0), EMFILE);
	EQ(connect(x, (struct sockaddr *)&a, sizeof a), 0);
	send_all(x, "three", 5);
	close(fill[--n]);
	int y = accept(l, NULL, NULL);
	recv_all(y, b, 5);
	return t_ok("emfile");
}
