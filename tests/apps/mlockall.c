// In a server that has locked all its future memory (mlockall(2)) a connection locks hardly any memory, and connects
// are quick.
#include "address_space.h"
enum { CLIENTS = 8, MOST = 1024 };
int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	if (mlockall(MCL_CURRENT | MCL_FUTURE))
		t_skip("mlockall", strerror(errno));
	pid_t kid[CLIENTS];
	long locked = 0, all = 0;
	for (int i = 0; i < CLIENTS; i++) {
		kid[i] = fork_child();
		if (!kid[i]) {
			int c = connect_to(port);
			talk(c, 1, i);
			recv_all(c, &(char){ 0 }, 1);
			_exit(0);
		}
		int fd = accept(l, NULL, NULL);
		CHECK(fd >= 0);
		talk(fd, 0, i);
		send_all(fd, "x", 1);
		// What the first one brings is there for all.
		if (i == 0)
			locked = status_kib("VmLck:"), all = status_kib("VmRSS:");
	}
	long more = status_kib("VmLck:") - locked, resident = status_kib("VmRSS:") - all;
	if (more > MOST * (CLIENTS - 1) || resident > MOST * (CLIENTS - 1))
		die("%d clients more lock %ld KiB and make %ld KiB resident", CLIENTS - 1, more, resident);
	for (int i = 0; i < CLIENTS; i++)
		reap(kid[i]);
	return t_ok("mlockall");
}
