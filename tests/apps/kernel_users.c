// Parts of the kernel that get a socket by its descriptor find a connection there, with every byte: a network block
// device (here a file that is not one, so the call is refused), a map of sockets, a file system over a connection, TLS.
#include "t.h"
#include <linux/bpf.h>
#include <linux/sockios.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#ifndef NBD_SET_SOCK
#define NBD_SET_SOCK _IO(0xab, 0)
#endif

static void goes_on(int a, int b)
{
	char buf[8];
	send_all(a, "question", 8);
	recv_all(b, buf, 8);
	CHECK(!memcmp(buf, "question", 8));
	send_all(b, "answer", 6);
	recv_all(a, buf, 6);
	CHECK(!memcmp(buf, "answer", 6));
}
// The kernel's own view: a socket that is connected.
static void is_kernels(int fd)
{
	char b;
	expect_on(fd, "TCP", "unsupported");
	EQ(syscall(SYS_recvfrom, fd, &b, 1, MSG_PEEK | MSG_DONTWAIT, NULL, NULL), -1);
	EQ(errno, EAGAIN);
}
static void block_device(int fd)
{
	int none = eventfd(0, 0);
	CHECK(ioctl(none, NBD_SET_SOCK, (long)fd) == -1);
	close(none);
}
static void file_system(int fd)
{
	char options[60];
	snprintf(options, sizeof options, "trans=fd,rfdno=%d,wfdno=%d", fd, fd);
	// There is no such folder, so nothing is mounted.
	FAILS(mount("none", "/nowhere/at/all", "9p", 0, options), ENOENT);
}
static void map(int fd)
{
	union bpf_attr make = { .map_type = BPF_MAP_TYPE_SOCKMAP, .key_size = 4, .value_size = 4, .max_entries = 1 };
	int m = syscall(SYS_bpf, BPF_MAP_CREATE, &make, sizeof make);
	if (m < 0) {
		// Not allowed, or not built into this kernel.
		block_device(fd);
		return;
	}
	int key = 0;
	union bpf_attr put = { .map_fd = m, .key = (uintptr_t)&key, .value = (uintptr_t)&fd };
	EQ(syscall(SYS_bpf, BPF_MAP_UPDATE_ELEM, &put, sizeof put), 0);
	union bpf_attr take = { .map_fd = m, .key = (uintptr_t)&key };
	EQ(syscall(SYS_bpf, BPF_MAP_DELETE_ELEM, &take, sizeof take), 0);
	close(m);
}
static void taken(int fd)
{
#ifdef SYS_pidfd_getfd
	int self = syscall(SYS_pidfd_open, getpid(), 0), copy = syscall(SYS_pidfd_getfd, self, fd, 0);
	if (copy >= 0) {
		char b;
		EQ(syscall(SYS_recvfrom, copy, &b, 1, MSG_PEEK | MSG_DONTWAIT, NULL, NULL), -1);
		EQ(errno, EAGAIN);
		close(copy);
	}
	close(self);
#else
	block_device(fd);
#endif
}
// TLS libraries try whether the kernel can do it for them: what it cannot leaves the connection where it is.
static void own_protocol(void)
{
	int p[2];
	pair(p);
	FAILS(setsockopt(p[0], IPPROTO_TCP, TCP_ULP, "none of these", 13), ENOENT);
	expect_shm(p[0]);
	if (!setsockopt(p[0], IPPROTO_TCP, TCP_ULP, "tls", 3))
		is_kernels(p[0]);
	else
		CHECK(errno == ENOENT);
	goes_on(p[0], p[1]);
	close(p[0]);
	close(p[1]);
}
// Requests that sockets do not know, or that are about something else, change nothing; nor has a socket a file to be opened.
static void other_requests(void)
{
	int p[2], n;
	char path[40];
	struct timeval t;
	pair(p);
	FAILS(ioctl(p[0], TIOCGWINSZ, &n), ENOTTY);
	FAILS(ioctl(p[0], SIOCGSTAMP, &t), ENOENT);
	EQ(ioctl(p[0], FIOGETOWN, &n), 0);
	EQ(n, 0);
	snprintf(path, sizeof path, "/proc/self/fd/%d", p[0]);
	FAILS(open(path, O_RDWR), ENXIO);
	FAILS(lseek(p[0], 0, SEEK_CUR), ESPIPE);
	FAILS(ftruncate(p[0], 0), EINVAL);
	expect_shm(p[0]);
	goes_on(p[0], p[1]);
	close(p[0]);
	close(p[1]);
}
static void compare(int fd)
{
#ifdef SYS_kcmp
	int other = socket(AF_INET, SOCK_STREAM, 0);
	long r = syscall(SYS_kcmp, getpid(), getpid(), 0, fd, other);
	CHECK(r > 0 || (r == -1 && (errno == ENOSYS || errno == EPERM)));
	close(other);
#else
	block_device(fd);
#endif
}

int main(void)
{
	t_init();
	void (*users[])(int) = { block_device, file_system, map, compare, taken };
	for (size_t i = 0; i < sizeof users / sizeof *users; i++) {
		int p[2];
		pair(p);
		expect_shm(p[0]);
		users[i](p[0]);
		is_kernels(p[0]);
		goes_on(p[0], p[1]);
		goes_on(p[1], p[0]);
		close(p[0]);
		close(p[1]);
	}
	own_protocol();
	other_requests();
	return t_ok("kernel_users");
}
