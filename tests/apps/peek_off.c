// SO_PEEK_OFF: the offset of a peek advances with each peek, also if the option is set in the middle of a connection.
#include "t.h"
int main(void)
{
	t_init();
	int p[2], off = 0, last = -1;
	char b[8];
	pair(p);
	expect_shm(p[0]);
	send_all(p[1], "abcdef", 6);
	CHECK(ready(p[0], POLLIN, 1000));
	// Linux before 6.9 has it for other sockets only, and its looks all begin at the first byte.
	int moves = setsockopt(p[0], SOL_SOCKET, SO_PEEK_OFF, &last, sizeof last) == 0;
	CHECK(moves || errno == EOPNOTSUPP);
	EQ(recv(p[0], b, 3, MSG_PEEK), 3);
	CHECK(!memcmp(b, "abc", 3));
	EQ(setsockopt(p[0], SOL_SOCKET, SO_PEEK_OFF, &off, sizeof off), moves ? 0 : -1);
	EQ(recv(p[0], b, 3, MSG_PEEK), 3);
	CHECK(!memcmp(b, "abc", 3));
	EQ(recv(p[0], b, 3, MSG_PEEK), 3);
	CHECK(!memcmp(b, moves ? "def" : "abc", 3));
	send_all(p[1], "gh", 2);
	recv_all(p[0], b, 8);
	CHECK(!memcmp(b, "abcdefgh", 8));
	send_all(p[0], "back", 4);
	recv_all(p[1], b, 4);
	CHECK(!memcmp(b, "back", 4));
	return t_ok("peek_off");
}
