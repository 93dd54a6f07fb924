// A program that can use only an io_uring, which it requests by syscall(2), as Rust's io-uring (tokio-uring, monoio)
// and fio do, gets the ring, and the sockets that its requests name are the kernel's: once before its first socket, and
// once after.
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
	ring = syscall(SYS_io_uring_setup, 8, &par);
	CHECK(ring >= 0);
	size_t n = par.sq_off.array + par.sq_entries * sizeof(unsigned) + 4096;
	queue = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
	requests = mmap(NULL, par.sq_entries * sizeof *requests, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
	CHECK(queue != MAP_FAILED && requests != MAP_FAILED);
}
static void add(int fd)
{
	struct epoll_event ev = { EPOLLIN, { .fd = fd } };
	unsigned at = tail & *(unsigned *)(queue + par.sq_off.ring_mask);
	requests[at] = (struct io_uring_sqe){ .opcode = IORING_OP_EPOLL_CTL, .fd = ep, .len = EPOLL_CTL_ADD, .off = fd };
	requests[at].addr = (uintptr_t)&ev;
	((unsigned *)(queue + par.sq_off.array))[at] = at;
	__atomic_store_n((unsigned *)(queue + par.sq_off.tail), ++tail, __ATOMIC_RELEASE);
	EQ(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0), 1);
}
// Requests name both ends of a connection that is there.
static void goes_on(int from, int to)
{
	char b[8];
	struct epoll_event ev[4];
	ep = epoll_create1(0);
	add(to);
	send_all(from, "hello", 5);
	EQ(epoll_wait(ep, ev, 4, -1), 1);
	EQ(ev[0].data.fd, to);
	EQ(ev[0].events, EPOLLIN);
	recv_all(to, b, 5);
	CHECK(!memcmp(b, "hello", 5));
	close(ep);
}
static void one(int late)
{
	int p[2];
	tail = 0;
	if (late) {
		pair(p);
		expect_shm(p[0]);
		send_all(p[1], "before", 6);
	}
	memset(&par, 0, sizeof par);
	set_up();
	if (late) {
		char b[8];
		recv_all(p[0], b, 6);
		CHECK(!memcmp(b, "before", 6));
	} else {
		pair(p);
	}
	expect_on(p[0], "TCP", "io-uring");
	goes_on(p[0], p[1]);
	goes_on(p[1], p[0]);
}

int main(void)
{
	t_init();
	if (syscall(SYS_io_uring_enter, -1, 0, 0, 0, NULL, 0) == -1 && (errno == ENOSYS || errno == EPERM))
		t_skip("ring_by_syscall", "no io_uring here");
	for (int late = 0; late < 2; late++) {
		pid_t child = fork();
		if (!child) {
			one(late);
			_exit(0);
		}
		int status;
		EQ(waitpid(child, &status, 0), child);
		EQ(status, 0);
	}
	return t_ok("ring_by_syscall");
}
