// In a process that is started with 0, 1 and 2 closed, as daemons are, sockets get these numbers and work, and no
// descriptor of the library's gets one of them.
#include "t.h"
int main(void)
{
	t_init();
	int keep = fcntl(1, F_DUPFD, 200);
	close(0);
	close(1);
	int l = socket(AF_INET, SOCK_STREAM, 0);
	EQ(l, 0);
	struct sockaddr_in a = addr4(0);
	EQ(bind(l, (struct sockaddr *)&a, sizeof a), 0);
	EQ(listen(l, 5), 0);
	a = addr4(port_of(0));
	int c = socket(AF_INET, SOCK_STREAM, 0);
	EQ(c, 1);
	EQ(connect(1, (struct sockaddr *)&a, sizeof a), 0);

	int s = accept(0, NULL, NULL);
	CHECK(s > 2);
	char b[16];
	EQ(printf("by printf"), 9); // stdout is the connection
	EQ(fflush(stdout), 0);
	recv_all(s, b, 9);
	CHECK(!memcmp(b, "by printf", 9));
	close(0);
	EQ(dup(1), 0); // inetd: 0 and 1 the same connection
	send_all(s, "a line\n", 7);
	CHECK(fgets(b, sizeof b, stdin) && !strcmp(b, "a line\n"));
	// exec of a shell with the connection as its stdin and stdout
	pid_t kid = fork_child();
	if (!kid) {
		execl("/bin/sh", "sh", "-c", "read x; echo got $x", NULL);
		_exit(1);
	}
	close(0);
	close(1);
	send_all(s, "word\n", 5);
	recv_all(s, b, 9);
	CHECK(!memcmp(b, "got word\n", 9));
	reap(kid);
	EQ(recv(s, b, 1, 0), 0);
	EQ(dup2(keep, 1), 1);
	clearerr(stdout);
	return t_ok("closed_stdio");
}
