// The library is replaced while a thread sleeps in any call. The call goes on, no byte is lost, and what is made afterwards
// is accelerated by the new one: listeners that the old one had, epoll instances, and new connections.
#include "ctl_sleeper.h"
static void once(void)
{
	volatile pid_t tid = 0;
	pthread_t t;
	pair(conn);
	EQ(send(conn[0], "first", 5, 0), 5);
	char b[9];
	recv_all(conn[1], b, 5);
	expect_shm(conn[1]);
	struct sockaddr_in before[2], after[2];
	socklen_t len = sizeof before[0];
	EQ(getsockname(conn[0], (void *)&before[0], &len), 0);
	EQ(getpeername(conn[0], (void *)&before[1], &len), 0);
	CHECK(!pthread_create(&t, NULL, sleeper, (void *)&tid));
	while (!tid)
		usleep(100);
	let_it_block(getpid(), tid);
	ctl("upgrade", getpid());
	if (has_ctl()) {
		expect_on(conn[0], "TCP", NULL);
		expect_on(conn[1], "TCP", NULL);
	}
	EQ(getsockname(conn[0], (void *)&after[0], &len), 0);
	EQ(getpeername(conn[0], (void *)&after[1], &len), 0);
	CHECK(!memcmp(before, after, sizeof before));
	if (way >= ACCEPT) {
		int c = connect_to(port);
		pthread_join(t, NULL);
		expect_shm(c);
		send_all(c, "by shared", 9);
		recv_all(got, b, 9);
		CHECK(!memcmp(b, "by shared", 9));
		close(c);
		close(got);
	} else {
		send_all(conn[0], "abcdefgh", 8);
		pthread_join(t, NULL);
	}
	// The other direction, and the end.
	send_all(conn[1], "back", 4);
	recv_all(conn[0], b, 4);
	CHECK(!memcmp(b, "back", 4));
	close(conn[0]);
	EQ(recv(conn[1], b, 8, 0), 0);
	close(conn[1]);
	int c = connect_to(port), s = accept(lsn, NULL, NULL);
	CHECK(s >= 0);
	expect_shm(c);
	close(c);
	close(s);
}
int main(void)
{
	t_init();
	ep = epoll_create1(0);
	lsn = listen_on(&port);
	for (way = 0; way < WAYS; way++) {
		fprintf(stderr, "%s\n", NAMES[way]);
		once();
	}
	return t_ok("upgrade_sleepers");
}
