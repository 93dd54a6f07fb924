// A server with a small SO_SNDBUF writes more than fits, with every way to wait for room: edge-triggered,
// level-triggered, in poll(2), and in the call itself. Every byte arrives, whatever the reader's pace and its
// SO_RCVBUF.
#include "t.h"

enum way { EDGES, LEVEL, POLL, BLOCKING };
#define TOTAL (1 << 20)

static unsigned char out[TOTAL];

static void wait_for_room(enum way way, int s, int ep)
{
	struct epoll_event ev;
	struct pollfd w = { s, POLLOUT, 0 };
	if (way == POLL)
		EQ(poll(&w, 1, -1), 1);
	else if (way != BLOCKING)
		do
			EQ(epoll_wait(ep, &ev, 1, -1), 1);
		while (!(ev.events & EPOLLOUT));
}
// As nginx does: after a part has gone out it waits for the next event.
static void serve(enum way way, int l, size_t piece)
{
	int s = accept(l, NULL, NULL), ep = epoll_create1(0);
	CHECK(s >= 0);
	struct epoll_event ev = { EPOLLIN | EPOLLOUT | EPOLLRDHUP | (way == EDGES ? EPOLLET : 0u), { .fd = s } };
	if (way != BLOCKING)
		nonblock(s);
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, s, &ev), 0);
	for (size_t at = 0; at < TOTAL;) {
		wait_for_room(way, s, ep);
		for (size_t n = piece; n == piece && at < TOTAL;) {
			size_t want = TOTAL - at < piece ? TOTAL - at : piece;
			ssize_t r = send(s, out + at, want, MSG_NOSIGNAL);
			if (r < 0)
				EQ(errno, EAGAIN);
			n = r < 0 ? 0 : r;
			at += n;
			if (n < want)
				break;
		}
	}
	close(ep);
	close(s);
}
// `grow`: SO_RCVBUF is set while the writer waits for room.
static void one(enum way way, int sndbuf, int rcvbuf, size_t piece, size_t reads, int grow)
{
	static unsigned char in[1 << 16];
	struct sockaddr_in a = addr4(0);
	int l = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(!setsockopt(l, SOL_SOCKET, SO_SNDBUF, &sndbuf, sizeof sndbuf));
	CHECK(!bind(l, (struct sockaddr *)&a, sizeof a) && !listen(l, 8));
	to_be_found(l);
	pid_t child = fork_child();
	if (!child) {
		serve(way, l, piece);
		_exit(0);
	}
	a = addr4(port_of(l));
	int c = socket(AF_INET, SOCK_STREAM, 0);
	if (rcvbuf)
		CHECK(!setsockopt(c, SOL_SOCKET, SO_RCVBUF, &rcvbuf, sizeof rcvbuf));
	CHECK(!connect(c, (struct sockaddr *)&a, sizeof a));
	close(l);
	let_it_block(child, child);
	size_t at = 0;
	for (ssize_t r; (r = recv(c, in, reads, 0)) > 0; at += r) {
		pat_check(in, r, at, 1);
		if (grow && at < 1000) {
			int more = 1 << 18;
			CHECK(!setsockopt(c, SOL_SOCKET, SO_RCVBUF, &more, sizeof more));
		}
	}
	EQ(at, TOTAL);
	close(c);
	reap(child);
}
int main(void)
{
	t_init();
	pat_fill(out, sizeof out, 0, 1);
	for (enum way way = EDGES; way <= BLOCKING; way++)
		for (int small = 0; small < 2; small++) {
			one(way, small ? 4096 : 32768, 0, 65536, 8192, 0);
			one(way, small ? 4096 : 32768, 0, 4096, 1000, 0);
			one(way, small ? 4096 : 200000, 16384, 65536, 65536, 0);
			one(way, small ? 4096 : 100000, 8192, 20000, 500, 1);
		}
	return t_ok("sndbuf_edges");
}
