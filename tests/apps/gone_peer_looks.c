// The peer's process ends without a close (SIGKILL, _exit), alone or as the last of two that have the connection. Calls
// that do not wait find its end as well: poll, select and epoll with no time, recv with MSG_DONTWAIT, and
// getsockopt.
#include "t.h"
enum { POLL, POLL_BOTH, PPOLL, SELECT, RECV, PEEK, READ, EPOLL_LT, EPOLL_ET, NESTED, INFO, KINDS };
static struct sig s, m;
static int port, l;

static void victim(int shared) // never returns
{
	int fd = connect_to(port);
	send_all(fd, "x", 1);
	if (shared) {
		pid_t kid = fork();
		CHECK(kid >= 0);
		if (kid)
			_exit(0);
	}
	tell(s);
	await(s);
	if (shared)
		_exit(0);
	kill(getpid(), SIGKILL);
}
static int epoll_of(int fd, uint32_t events)
{
	int ep = epoll_create1(0);
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &(struct epoll_event){ .events = events }), 0);
	return ep;
}
static int state(int fd)
{
	struct tcp_info i = { 0 };
	socklen_t n = sizeof i;
	EQ(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &i, &n), 0);
	return i.tcpi_state;
}
static int is_seen(int kind, int fd, int ep)
{
	char b[4];
	struct pollfd p = { fd, POLLIN, 0 };
	fd_set r;
	ssize_t n = -1;
	switch (kind) {
	case POLL: return poll(&p, 1, 0) == 1;
	case POLL_BOTH: p.events |= POLLOUT | POLLRDHUP; return poll(&p, 1, -1) == 1 && p.revents & POLLRDHUP;
	case PPOLL: return ppoll(&p, 1, &(struct timespec){ 0, 0 }, NULL) == 1;
	case SELECT: FD_ZERO(&r); FD_SET(fd, &r); return select(fd + 1, &r, NULL, NULL, &(struct timeval){ 0, 0 }) == 1;
	case RECV: n = recv(fd, b, 4, MSG_DONTWAIT); break;
	case PEEK: n = recv(fd, b, 4, MSG_DONTWAIT | MSG_PEEK); break;
	case READ: n = read(fd, b, 4); break;
	case EPOLL_LT: case EPOLL_ET: return epoll_wait(ep, &(struct epoll_event){ 0 }, 1, 0) == 1;
	case NESTED: return ready(ep, POLLIN, 0) != 0;
	case INFO: return state(fd) == TCP_CLOSE_WAIT;
	}
	if (n < 0)
		EQ(errno, EAGAIN);
	return n == 0;
}
// A connection whose peer is about to end, with nothing to read.
static int begin(int shared, pid_t *kid)
{
	sigpair(&s, &m);
	*kid = fork_child();
	if (!*kid) {
		victim(shared);
	}
	int fd = accept(l, NULL, NULL);
	char b[2];
	CHECK(fd >= 0);
	recv_all(fd, b, 1);
	await(m);
	return fd;
}
static void end(pid_t kid)
{
	tell(m);
	waitpid(kid, NULL, 0);
	close(s.r), close(s.w), close(m.r), close(m.w);
}
static void one(int kind, int shared)
{
	pid_t kid;
	int fd = begin(shared, &kid);
	if (kind == READ)
		nonblock(fd);
	int ep = kind == EPOLL_ET ? epoll_of(fd, EPOLLIN | EPOLLET) : kind == EPOLL_LT || kind == NESTED ? epoll_of(fd, EPOLLIN) : -1;
	end(kid);
	while (!is_seen(kind, fd, ep))
		usleep(1000);
	char b[4];
	EQ(recv(fd, b, 4, MSG_DONTWAIT), 0);
	if (ep >= 0)
		close(ep);
	close(fd);
}
// What it had not read makes its end a reset.
static void resets(void)
{
	pid_t kid;
	int fd = begin(0, &kid), e = 0;
	send_all(fd, "unread", 6);
	end(kid);
	for (socklen_t n = sizeof e; !e; usleep(1000))
		EQ(getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &n), 0);
	EQ(e, ECONNRESET);
	close(fd);
}
int main(void)
{
	t_init();
	l = listen_on(&port);
	for (int shared = 0; shared < 2; shared++) {
		for (int kind = 0; kind < KINDS; kind++)
			one(kind, shared);
	}
	resets();
	return t_ok("gone_peer_looks");
}
