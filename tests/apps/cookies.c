// SO_COOKIE: every socket has a number of its own, which stays the same whatever becomes of the socket.
#include "t.h"
enum { MOST = 64 };
static uint64_t seen[MOST];
static int count;
static uint64_t cookie(int fd)
{
	uint64_t c = 0;
	socklen_t n = sizeof c;
	EQ(getsockopt(fd, SOL_SOCKET, SO_COOKIE, &c, &n), 0);
	EQ(n, sizeof c);
	CHECK(c);
	return c;
}
static uint64_t fresh(int fd)
{
	uint64_t c = cookie(fd);
	for (int i = 0; i < count; i++)
		CHECK(seen[i] != c);
	CHECK(count < MOST);
	return seen[count++] = c;
}
// Two processes have a connection before either of them asks: they are told the same number.
static void asked_after_fork(void)
{
	int p[2], q[2];
	uint64_t kids[2];
	pair(p);
	EQ(pipe(q), 0);
	pid_t kid = fork_child();
	if (!kid) {
		for (int i = 0; i < 2; i++)
			kids[i] = cookie(p[i]);
		EQ(write(q[1], kids, sizeof kids), sizeof kids);
		_exit(0);
	}
	for (int i = 0; i < 2; i++)
		fresh(p[i]);
	EQ(read(q[0], kids, sizeof kids), sizeof kids);
	reap(kid);
	for (int i = 0; i < 2; i++)
		EQ(kids[i], cookie(p[i]));
}
int main(void)
{
	t_init();
	int port, l = listen_on(&port), fd[6];
	fresh(l);
	for (int i = 0; i < 6; i++) // unconnected sockets
		fresh(fd[i] = socket(i % 2 ? AF_INET6 : AF_INET, SOCK_STREAM, 0));
	for (int i = 0; i < 6; i++)
		EQ(cookie(fd[i]), seen[i + 1]);
	for (int i = 0; i < 4; i++) {
		struct sockaddr_in a = addr4(port);
		int c = i ? socket(AF_INET, SOCK_STREAM, 0) : fd[0];
		uint64_t before = i == 1 ? fresh(c) : i ? 0 : seen[1];
		EQ(connect(c, (struct sockaddr *)&a, sizeof a), 0);
		int s = accept(l, NULL, NULL), twin = dup(s);
		CHECK(s >= 0);
		uint64_t of_c = i < 2 ? cookie(c) : fresh(c), of_s = fresh(s);
		if (before)
			EQ(of_c, before);
		EQ(cookie(twin), of_s);
		EQ(cookie(c), of_c);
		pid_t kid = fork_child();
		if (!kid) {
			EQ(cookie(s), of_s);
			EQ(cookie(c), of_c);
			_exit(0);
		}
		reap(kid);
		EQ(cookie(s), of_s);
		EQ(cookie(c), of_c);
	}
	asked_after_fork();
	char few[4];
	socklen_t n = sizeof few;
	FAILS(getsockopt(fd[0], SOL_SOCKET, SO_COOKIE, few, &n), EINVAL);
	return t_ok("cookies");
}
