// Descriptors with FD_CLOEXEC are closed by exec, which the peer sees, and others remain; accept4 and SOCK_CLOEXEC set
// the flag.
#include "t.h"
int main(int argc, char **argv)
{
	t_init();
	if (argc > 1) { // after exec: our descriptors are arguments "+n" open "-n" closed
		for (int i = 1; i < argc; i++) {
			int fd = atoi(argv[i] + 1);
			if ((fcntl(fd, F_GETFD) >= 0) != (argv[i][0] == '+'))
				die("descriptor %s after exec", argv[i]);
			if (argv[i][0] == '+')
				send_all(fd, "here", 4);
		}
		return 0;
	}
	int port, l = listen_on(&port), port2, l2 = listen_on(&port2);
	fcntl(l2, F_SETFD, FD_CLOEXEC);
	struct sockaddr_in a = addr4(port);
	pid_t kid = fork_child();
	if (!kid) {
		char s[4][16];
		int c1 = connect_to(port), c2 = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), c3, c4;
		EQ(connect(c2, (struct sockaddr *)&a, sizeof a), 0);
		c3 = connect_to(port);
		EQ(fcntl(c3, F_SETFD, FD_CLOEXEC), 0);
		c4 = dup(c3);
		close(c4);
		c4 = fcntl(c3, F_DUPFD, 0); // without the flag: stays
		EQ(fcntl(c1, F_GETFD), 0);
		EQ(fcntl(c2, F_GETFD), FD_CLOEXEC);
		close(l);
		snprintf(s[0], 16, "+%d", c1);
		snprintf(s[1], 16, "-%d", c2);
		snprintf(s[2], 16, "-%d", c3);
		snprintf(s[3], 16, "+%d", c4);
		execl("/proc/self/exe", argv[0], s[0], s[1], s[2], s[3], NULL);
		die("exec");
	}
	int s1 = accept4(l, NULL, NULL, SOCK_CLOEXEC), s2 = accept(l, NULL, NULL), s3 = accept4(l, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	char b[8];
	EQ(fcntl(s1, F_GETFD), FD_CLOEXEC);
	EQ(fcntl(s2, F_GETFD), 0);
	EQ(fcntl(s3, F_GETFD), FD_CLOEXEC);
	EQ(fcntl(s3, F_GETFL), O_RDWR | O_NONBLOCK);
	EQ(recv(s2, b, 8, 0), 0); // closed by the exec, without data
	recv_all(s1, b, 4);
	fcntl(s3, F_SETFL, 0);
	recv_all(s3, b, 4);
	EQ(recv(s1, b, 1, 0), 0);
	EQ(recv(s3, b, 1, 0), 0);
	reap(kid);
	return t_ok("cloexec");
}
