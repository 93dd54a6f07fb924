// A process that sleeps in any call notices at once that it is switched off: its connections and its listener go to the
// kernel, no byte is lost, and the call goes on. When it is switched on, it is accelerated again.
#include "ctl_sleeper.h"
static void once(void)
{
	volatile pid_t tid = 0;
	pthread_t t;
	pair(conn);
	EQ(send(conn[0], "first", 5, 0), 5);
	char b[8];
	recv_all(conn[1], b, 5);
	expect_shm(conn[1]);
	CHECK(!pthread_create(&t, NULL, sleeper, (void *)&tid));
	while (!tid)
		usleep(100);
	let_it_block(getpid(), tid);
	ctl("off", getpid());
	if (has_ctl()) {
		expect_on(conn[0], "TCP", NULL);
		expect_on(conn[1], "TCP", NULL);
		expect_on(lsn, "TCP", "switched-off");
	}
	if (way >= ACCEPT) {
		int c = connect_to(port);
		pthread_join(t, NULL);
		send_all(c, "by kernel", 9);
		char k[9];
		recv_all(got, k, 9);
		CHECK(!memcmp(k, "by kernel", 9));
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
	// It hears of this at the next call.
	ctl_ask("on", getpid());
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
	return t_ok("ctl_sleepers");
}
