// When a program binds a socket and the program that it executes calls listen on it, the connections are accelerated from its
// first wait on: the first program, which has the socket too, might be the one to accept.
#include "t.h"
static int serve(int l)
{
	EQ(listen(l, 8), 0);
	CHECK(!ready(l, POLLIN, 0));
	EQ(write(1, "r", 1), 1);
	int s = accept(l, NULL, NULL);
	CHECK(s >= 0);
	char c;
	recv_all(s, &c, 1);
	expect_shm(s);
	send_all(s, &c, 1);
	EQ(recv(s, &c, 1, 0), 0);
	return 0;
}
int main(int argc, char **argv)
{
	t_init();
	if (argc > 1)
		return serve(atoi(argv[1]));
	struct sockaddr_in a = addr4(0);
	int l = socket(AF_INET, SOCK_STREAM, 0), p[2];
	EQ(bind(l, (struct sockaddr *)&a, sizeof a), 0);
	int port = port_of(l);
	EQ(pipe(p), 0);
	pid_t kid = fork_child();
	if (!kid) {
		char number[12];
		snprintf(number, sizeof number, "%d", l);
		dup2(p[1], 1);
		close(p[0]), close(p[1]);
		execl("/proc/self/exe", argv[0], number, (char *)NULL);
		die("exec");
	}
	char c;
	EQ(read(p[0], &c, 1), 1);
	int s = connect_to(port);
	expect_shm(s);
	send_all(s, "x", 1);
	recv_all(s, &c, 1);
	close(s);
	reap(kid);
	return t_ok("listen_after_exec");
}
