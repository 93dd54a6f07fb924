// accept(2) gives the connections that came while an operator had the server switched off before those that another client makes once
// it is on again.
#include "ctl.h"
enum { HALF = 4, ROUNDS = 5 };
static int port;
static void client(int from, struct sig s)
{
	await(s);
	for (char i = (char)from; i < from + HALF; i++)
		send_all(connect_to(port), &i, 1);
	tell(s);
	await(s);
	_exit(0);
}
static void once(void)
{
	int l = listen_on(&port);
	struct sig at_server[2], at_client;
	pid_t kid[2];
	for (int k = 0; k < 2; k++) {
		sigpair(&at_server[k], &at_client);
		kid[k] = fork_child();
		if (!kid[k]) {
			close(l);
			client(k * HALF, at_client);
		}
	}
	for (int k = 0; k < 2; k++) {
		ctl_ask(k ? "on" : "off", getpid());
		EQ(ready(l, POLLIN, 0), k); // a call in which the server hears of it
		tell(at_server[k]);
		await(at_server[k]);
	}
	for (int i = 0; i < 2 * HALF; i++) {
		char number;
		CHECK(ready(l, POLLIN, 5000));
		int s = accept(l, NULL, NULL);
		CHECK(s >= 0);
		recv_all(s, &number, 1);
		EQ(number, i);
		if (i >= HALF)
			expect_shm(s);
		close(s);
	}
	for (int k = 0; k < 2; k++) {
		tell(at_server[k]);
		reap(kid[k]);
	}
	close(l);
}
int main(void)
{
	t_init();
	for (int i = 0; i < ROUNDS; i++)
		once();
	return t_ok("ctl_order_clients");
}
