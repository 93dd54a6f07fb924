// musl's message headers and control messages have padding in which a program may leave anything: it is not part of a length.
#include "t.h"

static struct msghdr header(struct iovec *v, int n)
{
	struct msghdr m;
	memset(&m, 0xa5, sizeof m);
	m.msg_name = NULL;
	m.msg_namelen = 0;
	m.msg_iov = v;
	m.msg_iovlen = n;
	m.msg_control = NULL;
	m.msg_controllen = 0;
	m.msg_flags = 0;
	return m;
}

// Both ends of a connection, then of one that began on TCP and was given to the kernel.
static void messages(int a, int b)
{
	char data[3000], back[3000];
	struct iovec out[2] = { { data, 1000 }, { data + 1000, 2000 } }, in[2] = { { back, 10 }, { back + 10, 2990 } };
	for (int round = 0; round < 50; round++) {
		pat_fill((unsigned char *)data, sizeof data, round * 3000, 1);
		struct msghdr m = header(out, 2);
		EQ(sendmsg(a, &m, 0), 3000);
		m = header(in, 2);
		EQ(recvmsg(b, &m, MSG_WAITALL), 3000);
		EQ(m.msg_controllen, 0);
		EQ(m.msg_iovlen, 2);
		pat_check((unsigned char *)back, sizeof back, round * 3000, 1);

		struct mmsghdr many[2] = { { header(&out[0], 1), 7 }, { header(&out[1], 1), 7 } };
		EQ(sendmmsg(b, many, 2, 0), 2);
		EQ(many[0].msg_len, 1000);
		EQ(many[1].msg_len, 2000);
		struct iovec whole = { back, 3000 };
		many[0] = (struct mmsghdr){ header(&whole, 1), 7 };
		EQ(recvmmsg(a, many, 1, MSG_WAITALL, NULL), 1);
		EQ(many[0].msg_len, 3000);
		pat_check((unsigned char *)back, sizeof back, round * 3000, 1);
	}
}

static void send_fd(int socket, int fd)
{
	union {
		char room[CMSG_SPACE(sizeof fd)];
		struct cmsghdr h;
	} control;
	memset(&control, 0xa5, sizeof control);
	control.h.cmsg_len = CMSG_LEN(sizeof fd);
	control.h.cmsg_level = SOL_SOCKET;
	control.h.cmsg_type = SCM_RIGHTS;
	memcpy(CMSG_DATA(&control.h), &fd, sizeof fd);
	struct iovec v = { "x", 1 };
	struct msghdr m = header(&v, 1);
	m.msg_control = &control;
	m.msg_controllen = sizeof control;
	EQ(sendmsg(socket, &m, 0), 1);
}

static int receive_fd(int socket)
{
	char room[CMSG_SPACE(sizeof(int))], c;
	struct iovec v = { &c, 1 };
	struct msghdr m = header(&v, 1);
	m.msg_control = room;
	m.msg_controllen = sizeof room;
	EQ(recvmsg(socket, &m, 0), 1);
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);
	CHECK(h && h->cmsg_type == SCM_RIGHTS);
	int fd;
	memcpy(&fd, CMSG_DATA(h), sizeof fd);
	return fd;
}

int main(void)
{
	t_init();
	int p[2], s[2];
	pair(p);
	messages(p[0], p[1]);
	expect_shm(p[0]);
	// A connection that is passed to another process goes to the kernel with the message.
	EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, s), 0);
	pid_t kid = fork_child();
	if (!kid) {
		close(p[0]);
		close(p[1]);
		int c = receive_fd(s[1]);
		char data[5];
		recv_all(c, data, 5);
		send_all(c, data, 5);
		_exit(0);
	}
	send_fd(s[0], p[1]);
	close(p[1]);
	char back[5];
	send_all(p[0], "hello", 5);
	recv_all(p[0], back, 5);
	CHECK(!memcmp(back, "hello", 5));
	reap(kid);
	return t_ok("padding");
}
