// With NETACC_EXPECT=shm or rdma: world N must really be accelerated, else the comparison would prove nothing.
#include "../apps/t.h"
void expect_accelerated(void)
{
	int p[2];
	// Over a network the way has to be found first, and what finds it to be loaded.
	for (int i = 0; by_network() && i < 3; i++) {
		pair(p);
		close(p[0]);
		close(p[1]);
	}
	pair(p);
	send_all(p[0], "x", 1);
	char c;
	recv_all(p[1], &c, 1);
	expect_shm(p[0]);
	expect_shm(p[1]);
	abortive(p[0]);
	close(p[0]);
	close(p[1]);
}
