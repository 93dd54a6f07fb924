// An echo of 1 byte to 60 KB is correct with every call that moves bytes, with both roles in one process.
#include "t.h"
enum { MAX = 60000 };
static unsigned char a[MAX], b[MAX];
static ssize_t put(int how, int fd, const unsigned char *p, size_t n)
{
	struct iovec v[3] = { { (void *)p, n / 3 }, { (void *)(p + n / 3), 0 }, { (void *)(p + n / 3), n - n / 3 } };
	struct mmsghdr mm[1] = { { .msg_hdr = { .msg_iov = v, .msg_iovlen = 3 } } };
	switch (how) {
	case 0: return send(fd, p, n, 0);
	case 1: return write(fd, p, n);
	case 2: return writev(fd, v, 3);
	case 3: return sendmsg(fd, &mm[0].msg_hdr, 0);
	case 4: return sendto(fd, p, n, 0, NULL, 0);
	case 5: return sendmmsg(fd, mm, 1, 0) == 1 ? (ssize_t)mm[0].msg_len : -1;
	default: return pwritev2(fd, v, 3, -1, 0);
	}
}
static ssize_t get(int how, int fd, unsigned char *p, size_t n)
{
	struct iovec v[3] = { { p, n / 2 }, { p + n / 2, 0 }, { p + n / 2, n - n / 2 } };
	struct mmsghdr mm[1] = { { .msg_hdr = { .msg_iov = v, .msg_iovlen = 3 } } };
	struct sockaddr_in sa;
	socklen_t sl = sizeof sa;
	switch (how) {
	case 0: return recv(fd, p, n, 0);
	case 1: return read(fd, p, n);
	case 2: return readv(fd, v, 3);
	case 3: return recvmsg(fd, &mm[0].msg_hdr, 0);
	case 4: return recvfrom(fd, p, n, 0, (struct sockaddr *)&sa, &sl);
	case 5: return recvmmsg(fd, mm, 1, 0, NULL) == 1 ? (ssize_t)mm[0].msg_len : -1;
	default: return preadv2(fd, v, 3, -1, 0);
	}
}
int main(void)
{
	t_init();
	int p[2];
	pair(p);
	expect_shm(p[0]);
	expect_shm(p[1]);
	static const int sizes[] = { 1, 2, 3, 63, 64, 65, 1000, 4096, 16384, MAX };
	uint64_t off = 0;
	for (int dir = 0; dir < 2; dir++)
		for (int i = 0; i < 7; i++)
			for (int j = 0; j < 7; j++)
				for (unsigned k = 0; k < sizeof sizes / sizeof *sizes; k++) {
					int n = sizes[k], got = 0;
					pat_fill(a, n, off, dir);
					EQ(put(i, p[dir], a, n), n);
					while (got < n) {
						ssize_t r = get(j, p[!dir], b + got, n - got);
						if (r <= 0)
							die("put %d get %d size %d: %zd", i, j, n, r);
						got += r;
					}
					pat_check(b, n, off, dir);
					off += n;
				}
	// two messages in one sendmmsg, received in one go; recvmmsg with two
	struct iovec v[2] = { { "hello ", 6 }, { "world", 5 } };
	struct mmsghdr mm[2] = { { .msg_hdr = { .msg_iov = &v[0], .msg_iovlen = 1 } }, { .msg_hdr = { .msg_iov = &v[1], .msg_iovlen = 1 } } };
	EQ(sendmmsg(p[0], mm, 2, 0), 2);
	EQ(mm[0].msg_len, 6);
	EQ(mm[1].msg_len, 5);
	EQ(recv(p[1], b, 11, MSG_WAITALL), 11);
	CHECK(!memcmp(b, "hello world", 11));
	// zero bytes: nothing happens, and it is no end of file for the other side
	EQ(send(p[0], a, 0, 0), 0);
	EQ(write(p[0], a, 0), 0);
	EQ(read(p[1], b, 0), 0);
	FAILS(recv(p[1], b, 10, MSG_DONTWAIT), EAGAIN);
	FAILS(pread(p[1], b, 10, 0), ESPIPE);
	FAILS(pwrite(p[1], b, 10, 0), ESPIPE);
	FAILS(lseek(p[1], 0, SEEK_CUR), ESPIPE);
	return t_ok("io_families");
}
