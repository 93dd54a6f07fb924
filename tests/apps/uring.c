// Every kind of request on sockets that are handed to io_uring by liburing finds a working socket, with every byte, and
// the other sockets of the process stay as they are.
#include "t.h"
#if __has_include(<liburing.h>)
#include <liburing.h>

static struct io_uring ring;

static struct io_uring_sqe *request(void)
{
	struct io_uring_sqe *q = io_uring_get_sqe(&ring);
	CHECK(q);
	return q;
}
// The result of the next completion.
static int result(unsigned *flags)
{
	struct io_uring_cqe *c;
	EQ(io_uring_wait_cqe(&ring, &c), 0);
	int r = c->res;
	if (flags)
		*flags = c->flags;
	io_uring_cqe_seen(&ring, c);
	return r;
}
static int submit(void)
{
	EQ(io_uring_submit(&ring), 1);
	return result(NULL);
}

// What lies in shared memory comes first, then what is sent afterwards, either way.
static void bytes(void)
{
	int p[2];
	char b[64] = "";
	pair(p);
	expect_shm(p[0]);
	send_all(p[0], "before ", 7);
	io_uring_prep_recv(request(), p[1], b, 7, MSG_WAITALL);
	EQ(submit(), 7);
	send_all(p[0], "after", 5);
	io_uring_prep_read(request(), p[1], b + 7, 20, 0);
	EQ(submit(), 5);
	EQ(memcmp(b, "before after", 12), 0);
	io_uring_prep_send(request(), p[1], "answer", 6, 0);
	EQ(submit(), 6);
	recv_all(p[0], b, 6);
	EQ(memcmp(b, "answer", 6), 0);
	// A request that waits, and the other end that sends by the usual call.
	io_uring_prep_recv(request(), p[1], b, 20, 0);
	EQ(io_uring_submit(&ring), 1);
	send_all(p[0], "late", 4);
	EQ(result(NULL), 4);
	io_uring_prep_shutdown(request(), p[1], SHUT_WR);
	EQ(submit(), 0);
	EQ(recv(p[0], b, 1, 0), 0);
	close(p[0]);
	close(p[1]);
}

static void many_shots(void)
{
	enum { SIZE = 64, N = 4 };
	int p[2];
	unsigned flags;
	static char room[N][SIZE];
	pair(p);
	expect_shm(p[0]);
	io_uring_prep_poll_multishot(request(), p[1], POLLIN);
	EQ(io_uring_submit(&ring), 1);
	send_all(p[0], "one", 3);
	CHECK(result(&flags) & POLLIN);
	CHECK(flags & IORING_CQE_F_MORE);
	close(p[0]);
	CHECK(result(&flags) & POLLIN);
	close(p[1]);
	// The poll is over with its socket.
	while (flags & IORING_CQE_F_MORE) {
		io_uring_prep_cancel64(request(), 0, IORING_ASYNC_CANCEL_ANY);
		EQ(io_uring_submit(&ring), 1);
		result(&flags);
		struct io_uring_cqe *c;
		while (!io_uring_peek_cqe(&ring, &c)) {
			flags &= c->flags;
			io_uring_cqe_seen(&ring, c);
		}
	}

	pair(p);
	expect_shm(p[0]);
	io_uring_prep_provide_buffers(request(), room, SIZE, N, 7, 0);
	EQ(submit(), 0);
	struct io_uring_sqe *q = request();
	io_uring_prep_recv_multishot(q, p[1], NULL, 0, 0);
	q->flags |= IOSQE_BUFFER_SELECT;
	q->buf_group = 7;
	EQ(io_uring_submit(&ring), 1);
	for (int i = 0; i < 2; i++) {
		char c = 'a' + i;
		send_all(p[0], &c, 1);
		EQ(result(&flags), 1);
		CHECK(flags & IORING_CQE_F_BUFFER);
		EQ(room[flags >> IORING_CQE_BUFFER_SHIFT][0], c);
	}
	close(p[0]);
	EQ(result(NULL), 0);
	close(p[1]);
}

static void connections(void)
{
	int port, l = listen_on(&port), c[2];
	char b[8];
	io_uring_prep_multishot_accept(request(), l, NULL, NULL, 0);
	EQ(io_uring_submit(&ring), 1);
	for (int i = 0; i < 2; i++) {
		c[i] = connect_to(port);
		int s = result(NULL);
		CHECK(s >= 0);
		send_all(c[i], "ping", 4);
		io_uring_prep_recv(request(), s, b, 8, 0);
		EQ(submit(), 4);
		close(s);
		EQ(recv(c[i], b, 1, 0), 0);
		close(c[i]);
	}
	io_uring_prep_cancel64(request(), 0, IORING_ASYNC_CANCEL_ANY);
	EQ(io_uring_submit(&ring), 1);
	result(NULL);
	result(NULL);
	close(l);

	struct sockaddr_in a = addr4(0);
	l = listen_on(&port);
	a.sin_port = htons(port);
	int s = socket(AF_INET, SOCK_STREAM, 0);
	io_uring_prep_connect(request(), s, (struct sockaddr *)&a, sizeof a);
	EQ(submit(), 0);
	int t = accept(l, NULL, NULL);
	CHECK(t >= 0);
	send_all(s, "pong", 4);
	recv_all(t, b, 4);
	close(s);
	close(t);
	close(l);
}

// Numbers that the ring keeps, and numbers that it closes.
static void numbers(void)
{
	int p[2], fd;
	char b[16];
	pair(p);
	expect_shm(p[0]);
	send_all(p[0], "kept", 4);
	EQ(io_uring_register_files(&ring, &p[1], 1), 0);
	struct io_uring_sqe *q = request();
	io_uring_prep_recv(q, 0, b, 16, 0);
	q->flags |= IOSQE_FIXED_FILE;
	EQ(submit(), 4);
	EQ(io_uring_unregister_files(&ring), 0);
	close(p[0]);
	close(p[1]);

	pair(p);
	expect_shm(p[0]);
	send_all(p[1], "last", 4);
	io_uring_prep_close(request(), p[1]);
	EQ(submit(), 0);
	recv_all(p[0], b, 4);
	EQ(recv(p[0], b, 1, 0), 0);
	// The number is free for anything.
	int zero = open("/dev/zero", O_RDONLY);
	fd = fcntl(zero, F_DUPFD, p[1]);
	EQ(fd, p[1]);
	EQ(read(fd, b, 16), 16);
	close(fd);
	close(zero);
	close(p[0]);

	// A chain: the bytes, then the end.
	pair(p);
	expect_shm(p[0]);
	q = request();
	io_uring_prep_send(q, p[1], "chain", 5, 0);
	q->flags |= IOSQE_IO_LINK;
	io_uring_prep_close(request(), p[1]);
	EQ(io_uring_submit_and_wait(&ring, 2), 2);
	EQ(result(NULL), 5);
	EQ(result(NULL), 0);
	recv_all(p[0], b, 5);
	EQ(recv(p[0], b, 1, 0), 0);
	close(p[0]);
}

// A connection that travels in a message which io_uring sends.
static void passed(void)
{
	int p[2], u[2];
	char c = 'f', b[8], ctl[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec v = { &c, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = ctl, .msg_controllen = sizeof ctl };
	pair(p);
	expect_shm(p[0]);
	EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, u), 0);
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);
	*h = (struct cmsghdr){ CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS };
	memcpy(CMSG_DATA(h), &p[1], sizeof(int));
	send_all(p[0], "unread", 6);
	io_uring_prep_sendmsg(request(), u[0], &m, 0);
	EQ(submit(), 1);
	close(p[1]);
	int fd = take_fd(u[1]);
	recv_all(fd, b, 6);
	EQ(memcmp(b, "unread", 6), 0);
	close(fd);
	EQ(recv(p[0], b, 1, 0), 0);
}

int main(void)
{
	t_init();
	int r = io_uring_queue_init(16, &ring, 0);
	if (r == -ENOSYS || r == -EPERM)
		t_skip("uring", "io_uring is forbidden here");
	EQ(r, 0);
	int other[2];
	pair(other);
	expect_shm(other[0]);
	bytes();
	many_shots();
	connections();
	numbers();
	passed();
	expect_shm(other[0]);
	char b[2];
	send_all(other[0], "x", 1);
	recv_all(other[1], b, 1);
	io_uring_queue_exit(&ring);
	return t_ok("uring");
}
#else
int main(void) { t_skip("uring", "liburing's headers are not here"); }
#endif
