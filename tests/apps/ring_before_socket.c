// libuv requests an io_uring by syscall(2) before its first socket and uses it to add sockets to an epoll instance; if
// it gets none, it uses epoll_ctl. Either way it gets the event of a connection, and the connection is accelerated.
#include "t.h"
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static int ring = -1, ep;
static struct io_uring_params par;
static char *queue;
static struct io_uring_sqe *requests;
static unsigned tail;

static void set_up(void)
{
	// By this libuv is known.
	CHECK(!getenv("UV_USE_IO_URING"));
	ring = syscall(SYS_io_uring_setup, 8, &par);
	if (ring < 0)
		return;
	size_t n = par.sq_off.array + par.sq_entries * sizeof(unsigned) + 4096;
	queue = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
	requests = mmap(NULL, par.sq_entries * sizeof *requests, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
	CHECK(queue != MAP_FAILED && requests != MAP_FAILED);
}
static void add(int fd)
{
	struct epoll_event ev = { EPOLLIN, { .fd = fd } };
	if (ring < 0) {
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev), 0);
		return;
	}
	unsigned at = tail & *(unsigned *)(queue + par.sq_off.ring_mask);
	requests[at] = (struct io_uring_sqe){ .opcode = IORING_OP_EPOLL_CTL, .fd = ep, .len = EPOLL_CTL_ADD, .off = fd };
	requests[at].addr = (uintptr_t)&ev;
	((unsigned *)(queue + par.sq_off.array))[at] = at;
	__atomic_store_n((unsigned *)(queue + par.sq_off.tail), ++tail, __ATOMIC_RELEASE);
	EQ(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0), 1);
}
int main(void)
{
	t_init();
	char b[8];
	int p[2], port;
	struct epoll_event ev[4];
	ep = epoll_create1(0);
	set_up();
	int l = listen_on(&port);
	add(l);
	p[0] = connect_to(port);
	EQ(epoll_wait(ep, ev, 4, -1), 1);
	EQ(ev[0].data.fd, l);
	p[1] = accept(l, NULL, NULL);
	CHECK(p[1] >= 0);
	expect_shm(p[1]);
	add(p[1]);
	send_all(p[0], "hello", 5);
	EQ(epoll_wait(ep, ev, 4, -1), 1);
	EQ(ev[0].data.fd, p[1]);
	EQ(ev[0].events, EPOLLIN);
	recv_all(p[1], b, 5);
	return t_ok("ring_before_socket");
}
