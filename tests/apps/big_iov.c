// writev, readv, sendmsg and recvmsg work with 1,024 parts (IOV_MAX), empty parts and bad pointers in the middle, and
// fail with more than IOV_MAX parts.
#include "t.h"
static unsigned char a[1 << 20], b[1 << 20];
static struct iovec v[2000];
static int p[2];
static void *rd(void *x)
{
	recv_all(p[1], b, (size_t)(long)x);
	return NULL;
}
int main(void)
{
	t_init();
	pair(p);
	expect_shm(p[0]);
	pat_fill(a, sizeof a, 0, 5);
	unsigned s = 1;
	size_t off = 0;
	for (int i = 0; i < IOV_MAX; i++) {
		s = s * 1103515245 + 12345;
		size_t n = i % 7 ? (s >> 10) % 1000 : 0;
		v[i] = (struct iovec){ a + off, n };
		off += n;
	}
	pthread_t t;
	pthread_create(&t, NULL, rd, (void *)(long)off);
	EQ(writev(p[0], v, IOV_MAX), off);
	pthread_join(t, NULL);
	CHECK(!memcmp(a, b, off));
	struct msghdr m = { .msg_iov = v, .msg_iovlen = IOV_MAX };
	pthread_create(&t, NULL, rd, (void *)(long)off);
	EQ(sendmsg(p[0], &m, 0), off);
	pthread_join(t, NULL);
	CHECK(!memcmp(a, b, off));
	FAILS(writev(p[0], v, IOV_MAX + 1), EINVAL);
	m.msg_iovlen = IOV_MAX + 1;
	FAILS(sendmsg(p[0], &m, 0), EMSGSIZE);
	send_all(p[0], a, 5000);
	CHECK(ready(p[1], POLLIN, 1000));
	size_t left = 5000, at = 0;
	memset(b, 0, sizeof b);
	while (left) { // into pieces of 3 bytes
		for (int i = 0; i < IOV_MAX; i++)
			v[i] = (struct iovec){ b + at + 3 * i, 3 };
		m.msg_iovlen = IOV_MAX;
		ssize_t r = recvmsg(p[1], &m, 0);
		CHECK(r > 0);
		at += r;
		left -= r;
	}
	CHECK(!memcmp(a, b, 5000));
	FAILS(send(p[0], (void *)8, 10, 0), EFAULT);
	send_all(p[0], a, 10);
	CHECK(ready(p[1], POLLIN, 1000));
	FAILS(recv(p[1], (void *)8, 10, 0), EFAULT);
	recv_all(p[1], b, 10); // not lost
	CHECK(!memcmp(a, b, 10));
	volatile int minus = -1;
	FAILS(readv(p[1], v, minus), EINVAL);
	EQ(readv(p[1], v, 0), 0);
	EQ(writev(p[0], v, 0), 0);
	return t_ok("big_iov");
}
