// getsockopt with a buffer that is too small, too large, empty or of negative length writes the bytes, and returns the
// length, that the kernel would.
#include "t.h"
#include <netinet/tcp.h>
static const struct { int level, name, value, small; } OPTION[] = {
	// An option of IP with less room than an int has is one byte.
	{ IPPROTO_IP, IP_TTL, 77, 1 },
	{ IPPROTO_IP, IP_TOS, 0, 1 },
	{ IPPROTO_TCP, TCP_NODELAY, 1, 0 },
	{ IPPROTO_TCP, TCP_KEEPCNT, 9, 0 },
	{ SOL_SOCKET, SO_KEEPALIVE, 1, 0 },
	{ SOL_SOCKET, SO_TYPE, SOCK_STREAM, 0 },
	{ SOL_SOCKET, SO_ERROR, 0, 0 },
};
static void look(int fd)
{
	for (unsigned i = 0; i < sizeof OPTION / sizeof *OPTION; i++) {
		int level = OPTION[i].level, name = OPTION[i].name;
		if (name != SO_TYPE && name != SO_ERROR)
			EQ(setsockopt(fd, level, name, &OPTION[i].value, 4), 0);
		for (int len = 0; len <= 8; len++) {
			unsigned char got[8], value[8];
			socklen_t n = len;
			memset(got, 0xee, sizeof got);
			memset(value, 0xee, sizeof value);
			EQ(getsockopt(fd, level, name, got, &n), 0);
			int told = len > 4 ? 4 : len;
			if (OPTION[i].small && len > 0 && len < 4)
				told = 1;
			EQ((int)n, told);
			memcpy(value, &OPTION[i].value, told);
			EQ(memcmp(got, value, sizeof got), 0);
		}
		int got = -7;
		socklen_t n = -1;
		FAILS(getsockopt(fd, level, name, &got, &n), EINVAL);
		EQ(got, -7);
	}
}
int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	struct sockaddr_in a = addr4(port);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	look(fd);
	EQ(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
	int s = accept(l, NULL, NULL);
	look(fd);
	look(s);
	look(l);
	return t_ok("option_lengths");
}
