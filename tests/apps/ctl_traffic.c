// A server and its clients are switched off and on again and again while they send and receive.
#include "ctl_traffic.h"
enum { ROUNDS = 6 };
static void off_and_on(pid_t server, pid_t clients)
{
	for (int i = 0; i < ROUNDS; i++) {
		usleep(30000);
		ctl("off", i % 2 ? clients : server);
		usleep(30000);
		ctl("on", i % 2 ? clients : server);
	}
	ctl("off", server);
}
int main(void)
{
	t_init();
	traffic(off_and_on);
	return t_ok("ctl_traffic");
}
