// MSG_PEEK, MSG_WAITALL, MSG_TRUNC, MSG_DONTWAIT, SO_RCVTIMEO, SO_RCVLOWAT, FIONREAD and SO_SNDTIMEO work as with TCP.
#include "t.h"
static int p[2];
static const char b_zero[1111];
static void *later(void *x)
{
	(void)x;
	let_it_block(getpid(), getpid());
	send_all(p[0], "defgh", 5);
	return NULL;
}
static void *much(void *x) // in pieces, so that it begins in what is small
{
	(void)x;
	for (int i = 2; i < 30000; i += 1111)
		send_all(p[0], b_zero, i + 1111 > 30000 ? 30000 - i : 1111);
	return NULL;
}
// What recvmsg(2) and its relatives tell of a call's flags, and which flag they refuse.
static void flags_of_messages(void)
{
	char x[4];
	struct iovec v = { x, 2 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };
	struct mmsghdr mm = { .msg_hdr = m };
	const int of_32_bits = INT_MIN;
	send_all(p[0], "abcd", 4);
	EQ(recvmsg(p[1], &m, MSG_CMSG_CLOEXEC | MSG_WAITALL), 2);
	EQ(m.msg_flags, MSG_CMSG_CLOEXEC);
	EQ(recvmmsg(p[1], &mm, 1, MSG_CMSG_CLOEXEC | MSG_WAITALL, NULL), 1);
	EQ(mm.msg_hdr.msg_flags, MSG_CMSG_CLOEXEC);
	send_all(p[0], "ab", 2);
	EQ(recvmsg(p[1], &m, MSG_WAITALL), 2);
	EQ(m.msg_flags, 0);
	FAILS(recvmsg(p[1], &m, of_32_bits), EINVAL);
	FAILS(sendmsg(p[0], &m, of_32_bits), EINVAL);
	FAILS(recvmmsg(p[1], &mm, 1, of_32_bits, NULL), EINVAL);
	FAILS(sendmmsg(p[0], &mm, 1, of_32_bits), EINVAL);
	FAILS(recv(p[1], x, 1, MSG_DONTWAIT), EAGAIN); // nothing was sent
}
// Flags for which a connection has nothing, and what recvmmsg(2) does at the end of a stream: it fills all headers.
static void refused_and_ended(void)
{
	char x[4];
	struct iovec v = { x, 2 };
	struct mmsghdr mm[3] = { [0 ... 2] = { .msg_hdr = { .msg_iov = &v, .msg_iovlen = 1 } } };
	int q[2];
	pair(q);
	FAILS(send(q[0], "a", 1, MSG_FASTOPEN), EISCONN);
	FAILS(recv(q[1], x, 1, MSG_OOB | MSG_ERRQUEUE), EAGAIN);
#ifdef RWF_APPEND // musl of some releases has none
	EQ(pwritev2(q[0], &(struct iovec){ "ab", 2 }, 1, -1, RWF_APPEND), 2);
#else
	send_all(q[0], "ab", 2);
#endif
	EQ(shutdown(q[0], SHUT_WR), 0);
	EQ(recvmmsg(q[1], mm, 3, 0, NULL), 3);
	EQ(mm[0].msg_len, 2);
	EQ(mm[1].msg_len + mm[2].msg_len, 0);
	close(q[0]), close(q[1]);
}
int main(void)
{
	t_init();
	pair(p);
	flags_of_messages();
	refused_and_ended();
	char b[100];
	int q;
	struct timeval tv = { 0, 50000 }, zero = { 0, 0 };
	send_all(p[0], "abc", 3);
	EQ(recv(p[1], b, 10, MSG_PEEK), 3);
	EQ(recv(p[1], b, 2, MSG_PEEK | MSG_DONTWAIT), 2);
	EQ(recv(p[1], NULL, 10, MSG_PEEK | MSG_TRUNC), 3);
	EQ(ioctl(p[1], FIONREAD, &q), 0);
	EQ(q, 3);
	pthread_t t;
	pthread_create(&t, NULL, later, NULL);
	EQ(recv(p[1], b, 8, MSG_WAITALL), 8);
	CHECK(!memcmp(b, "abcdefgh", 8));
	pthread_join(t, NULL);
	send_all(p[0], "abc", 3);
	pthread_create(&t, NULL, later, NULL);
	EQ(recv(p[1], b, 8, MSG_PEEK | MSG_WAITALL), 8); // waits for all, and takes nothing
	CHECK(!memcmp(b, "abcdefgh", 8));
	pthread_join(t, NULL);
	EQ(recv(p[1], b, 100, MSG_DONTWAIT), 8);
	static char wide[30000];
	send_all(p[0], "ab", 2);
	EQ(setsockopt(p[1], SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv), 0);
	EQ(recv(p[1], b, 8, MSG_PEEK | MSG_WAITALL), 2); // the time is up
	EQ(setsockopt(p[1], SOL_SOCKET, SO_RCVTIMEO, &zero, sizeof zero), 0);
	pthread_create(&t, NULL, much, wide);
	EQ(recv(p[1], wide, sizeof wide, MSG_PEEK | MSG_WAITALL), sizeof wide);
	pthread_join(t, NULL);
	EQ(recv(p[1], wide, sizeof wide, MSG_WAITALL), sizeof wide);
	send_all(p[0], "0123456789", 10);
	CHECK(ready(p[1], POLLIN, 1000));
	memset(b, 'x', 10);
	EQ(recv(p[1], b, 4, MSG_TRUNC), 4); // dropped, not copied
	EQ(b[0], 'x');
	EQ(recv(p[1], b, 100, 0), 6);
	CHECK(!memcmp(b, "456789", 6));
	EQ(setsockopt(p[1], SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv), 0);
	double t0 = now();
	FAILS(recv(p[1], b, 10, 0), EAGAIN);
	CHECK(now() - t0 > 0.045);
	t0 = now();
	FAILS(read(p[1], b, 10), EAGAIN);
	CHECK(now() - t0 > 0.045);
	send_all(p[0], "xyz", 3);
	EQ(recv(p[1], b, 10, MSG_WAITALL), 3); // the time is up: what there is
	EQ(poll(&(struct pollfd){ p[1], POLLIN, 0 }, 1, 0), 0);
	EQ(setsockopt(p[1], SOL_SOCKET, SO_RCVTIMEO, &zero, sizeof zero), 0);
	// the time limit of accept is SO_RCVTIMEO of the listener
	int port, l = listen_on(&port);
	EQ(setsockopt(l, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv), 0);
	t0 = now();
	FAILS(accept(l, NULL, NULL), EAGAIN);
	CHECK(now() - t0 > 0.045);
	int low = 5;
	EQ(setsockopt(p[1], SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low), 0);
	send_all(p[0], "1234", 4);
	EQ(ready(p[1], POLLIN, 20), 0);
	EQ(recv(p[1], b, 1, MSG_DONTWAIT), 1); // non-blocking takes what there is
	send_all(p[0], "56", 2);
	CHECK(ready(p[1], POLLIN, 1000) & POLLIN);
	EQ(recv(p[1], b, 100, 0), 5);
	EQ(setsockopt(p[1], SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv), 0);
	send_all(p[0], "78", 2);
	EQ(recv(p[1], b, 100, 0), 2); // its time is over before there are five
	EQ(setsockopt(p[1], SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){0}, sizeof tv), 0);
	// SO_SNDTIMEO with a full buffer
	EQ(setsockopt(p[0], SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv), 0);
	static char big[1 << 20];
	long sum = 0, r;
	int partial = 0;
	for (;;) {
		t0 = now();
		r = send(p[0], big, sizeof big, 0);
		if (r < 0)
			break;
		if (r < (long)sizeof big)
			partial++;
		sum += r;
		CHECK(sum < 1l << 30);
	}
	EQ(errno, EAGAIN);
	CHECK(now() - t0 > 0.045);
	CHECK(partial > 0);
	EQ(shutdown(p[0], SHUT_WR), 0);
	while ((r = recv(p[1], big, sizeof big, 0)) > 0)
		sum -= r;
	EQ(r, 0);
	EQ(sum, 0);
	return t_ok("msg_flags");
}
