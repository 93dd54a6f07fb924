// IP_PKTOPTIONS tells by control messages what IP_RECVTOS and its like ask for, also after the connection is there
// (Erlang's inet reads TOS and TTL so).
#include "t.h"
#include <netinet/ip.h>
static void on(int fd, int level, int name) { EQ(setsockopt(fd, level, name, &(int){ 1 }, sizeof(int)), 0); }
// The control messages of the socket.
static size_t messages(int fd, int level, int name, void *b, size_t room)
{
	socklen_t n = room;
	EQ(getsockopt(fd, level, name, b, &n), 0);
	return n;
}
// The value of one of them, whose data is an int; -1: it is not there.
static int value(char *b, size_t n, int level, int kind)
{
	struct msghdr m = { .msg_control = b, .msg_controllen = n };
	for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h)) {
		int v;
		memcpy(&v, CMSG_DATA(h), sizeof v);
		if (h->cmsg_level == level && h->cmsg_type == kind)
			return v;
	}
	return -1;
}
int main(void)
{
	t_init();
	int p[2], ttl;
	_Alignas(8) char b[256];
	socklen_t n = sizeof ttl;
	pair(p);
	send_all(p[0], "x", 1);
	recv_all(p[1], b, 1);
	EQ(getsockopt(p[0], IPPROTO_IP, IP_TTL, &ttl, &n), 0);
	for (int i = 0; i < 2; i++) {
		EQ(messages(p[i], IPPROTO_IP, IP_PKTOPTIONS, b, sizeof b), 0);
		on(p[i], IPPROTO_IP, IP_RECVTOS);
		size_t used = messages(p[i], IPPROTO_IP, IP_PKTOPTIONS, b, sizeof b);
		EQ(used, CMSG_SPACE(sizeof(int)));
		EQ(value(b, used, IPPROTO_IP, IP_TOS), 0);
		on(p[i], IPPROTO_IP, IP_RECVTTL);
		on(p[i], IPPROTO_IP, IP_PKTINFO);
		used = messages(p[i], IPPROTO_IP, IP_PKTOPTIONS, b, sizeof b);
		EQ(value(b, used, IPPROTO_IP, IP_TOS), 0);
		EQ(value(b, used, IPPROTO_IP, IP_TTL), i ? ttl : 1);
		CHECK(value(b, used, IPPROTO_IP, IP_PKTINFO) != -1);
		used = messages(p[i], IPPROTO_IP, IP_PKTOPTIONS, b, CMSG_SPACE(sizeof(struct in_pktinfo)));
		CHECK(value(b, used, IPPROTO_IP, IP_PKTINFO) != -1);
		expect_shm(p[i]);
	}
	send_all(p[1], "y", 1); // the connection goes on
	recv_all(p[0], b, 1);
	return t_ok("packet_answers");
}
