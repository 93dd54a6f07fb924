// Connects that wait at a listener when its process is switched off are still served, with all bytes that were written
// to them. Later ones come by TCP, and are accelerated when the process is switched on.
#include "ctl.h"
enum { WAITING = 20 };
static void clients(int port, struct sig go, struct sig there)
{
	int fd[WAITING + 1];
	char b[16];
	for (int i = 0; i < WAITING; i++) {
		fd[i] = connect_to(port);
		EQ(write(fd[i], &(char){ (char)i }, 1), 1);
	}
	tell(there);
	await(go);
	fd[WAITING] = connect_to(port);
	EQ(write(fd[WAITING], &(char){ WAITING }, 1), 1);
	tell(there);
	for (int i = 0; i <= WAITING; i++) {
		recv_all(fd[i], b, 2);
		EQ(b[0], i);
		EQ(b[1], 'k');
		EQ(recv(fd[i], b, 1, 0), 0);
	}
	_exit(0);
}
int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	struct sig go, go_there, there, there_here;
	sigpair(&go, &go_there);
	sigpair(&there, &there_here);
	pid_t kid = fork_child();
	if (!kid)
		clients(port, go_there, there);
	await(there_here);
	ctl_ask("off", getpid());
	// The first call hears of it.
	int seen = 0, n = 0, s = accept(l, NULL, NULL);
	expect_on(l, "TCP", "switched-off");
	tell(go);
	await(there_here);
	while (n <= WAITING) {
		char c, out[2];
		if (s < 0)
			s = accept(l, NULL, NULL);
		CHECK(s >= 0);
		recv_all(s, &c, 1);
		CHECK(c >= 0 && c <= WAITING && !(seen & 1 << c));
		seen |= 1 << c;
		out[0] = c;
		out[1] = 'k';
		send_all(s, out, 2);
		close(s);
		s = -1;
		n++;
	}
	reap(kid);
	ctl_ask("on", getpid());
	int c = connect_to(port);
	s = accept(l, NULL, NULL);
	CHECK(s >= 0);
	expect_shm(c);
	return t_ok("ctl_listener");
}
