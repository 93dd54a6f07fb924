// The library is replaced again and again in a server and its clients while they send and receive.
#include "ctl_traffic.h"
enum { ROUNDS = 10 };
static void upgrade(pid_t server, pid_t clients)
{
	for (int i = 0; i < ROUNDS; i++) {
		usleep(30000);
		ctl("upgrade", i % 2 ? clients : server);
	}
}
int main(void)
{
	t_init();
	traffic(upgrade);
	return t_ok("upgrade_traffic");
}
