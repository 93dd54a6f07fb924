// A reader that waits for more bytes than its writer has memory for does not wait for ever: poll and epoll with SO_RCVLOWAT report
// what is there, and MSG_PEEK with MSG_WAITALL sees all that it has asked for, as on TCP.
#include "t.h"
enum { BALLAST = 48, PUT = 100000, WANTED = 20000 };
enum how { POLL, EDGE, PEEK, PEEK_LESS, HOWS };
enum writing { BLOCKS, BY_POLL, BY_EPOLL, BY_TIMEOUT, WRITINGS };
static unsigned char data[WANTED], b[PUT];
static void write_by(enum writing w, int fd)
{
	int e = epoll_create1(0);
	struct epoll_event x = { EPOLLOUT, { 0 } };
	if (w == BY_TIMEOUT)
		EQ(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &(struct timeval){ 0, 1000 }, sizeof(struct timeval)), 0);
	if (w == BLOCKS)
		return send_all(fd, data, WANTED), (void)close(e);
	EQ(epoll_ctl(e, EPOLL_CTL_ADD, fd, &x), 0);
	for (size_t at = 0; at < WANTED;) {
		ssize_t n = send(fd, data + at, WANTED - at, w == BY_TIMEOUT ? 0 : MSG_DONTWAIT);
		if (n > 0)
			at += n;
		else if (w == BY_TIMEOUT)
			CHECK(n < 0 && errno == EAGAIN);
		else if (w == BY_POLL)
			CHECK(ready(fd, POLLOUT, -1));
		else
			EQ(epoll_wait(e, &x, 1, -1), 1);
	}
	close(e);
}
static void client(int port, struct sig server)
{
	int test[HOWS][WRITINGS], fill[BALLAST];
	for (int i = 0; i < HOWS * WRITINGS; i++)
		test[i / WRITINGS][i % WRITINGS] = connect_to(port);
	for (int i = 0; i < BALLAST; i++)
		fill[i] = connect_to(port);
	for (int i = 0; i < BALLAST; i++)
		CHECK(send(fill[i], b, PUT, MSG_DONTWAIT) > 0);
	for (int i = 0; i < HOWS * WRITINGS; i++) {
		await(server);
		write_by(i % WRITINGS, test[i / WRITINGS][i % WRITINGS]);
	}
	await(server);
	_exit(0);
}
static void read_by(enum how how, int fd)
{
	int low = WANTED, e = epoll_create1(0);
	size_t want = how == PEEK_LESS ? WANTED / 2 : WANTED, at = 0;
	struct epoll_event x = { EPOLLIN | (how == EDGE ? EPOLLET : 0), { 0 } };
	if (how != PEEK && how != PEEK_LESS)
		EQ(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low), 0);
	EQ(epoll_ctl(e, EPOLL_CTL_ADD, fd, &x), 0);
	if (how == PEEK || how == PEEK_LESS) {
		EQ(recv(fd, b, want, MSG_PEEK | MSG_WAITALL), want);
		pat_check(b, want, 0, 3);
	}
	while (at < WANTED) {
		if (how == POLL)
			EQ(ready(fd, POLLIN, 5000), POLLIN);
		else if (how == EDGE)
			EQ(epoll_wait(e, &x, 1, 5000), 1);
		for (ssize_t n; at < WANTED && (n = recv(fd, b + at, WANTED - at, how == PEEK || how == PEEK_LESS ? 0 : MSG_DONTWAIT)) > 0;)
			at += n;
		low = at < WANTED ? WANTED - at : 1;
		EQ(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low), 0);
	}
	pat_check(b, WANTED, 0, 3);
	close(e);
}
int main(int argc, char **argv)
{
	(void)argc;
	if (!getenv("NACC_WINDOW_MEMORY")) {
		setenv("NACC_WINDOW_MEMORY", "1", 1);
		execv("/proc/self/exe", argv);
	}
	t_init();
	pat_fill(data, WANTED, 0, 3);
	int port, l = listen_on(&port), test[HOWS][WRITINGS], fill[BALLAST];
	struct sig ours, theirs;
	sigpair(&ours, &theirs);
	pid_t kid = fork_child();
	if (!kid)
		client(port, theirs);
	for (int i = 0; i < HOWS * WRITINGS; i++)
		CHECK((test[i / WRITINGS][i % WRITINGS] = accept(l, NULL, NULL)) >= 0);
	for (int i = 0; i < BALLAST; i++)
		CHECK((fill[i] = accept(l, NULL, NULL)) >= 0);
	int n;
	do // all has been written that can be
		EQ(ioctl(fill[BALLAST - 1], FIONREAD, &n), 0);
	while (!n);
	for (int i = 0; i < HOWS * WRITINGS; i++) {
		int fd = test[i / WRITINGS][i % WRITINGS];
		if (i == 0)
			expect_shm(fd);
		tell(ours);
		read_by(i / WRITINGS, fd);
	}
	tell(ours);
	reap(kid);
	return t_ok("window_too_small");
}
