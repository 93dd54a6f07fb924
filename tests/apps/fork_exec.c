// fork, vfork, posix_spawn and system work with connections open, and this program executes itself and goes on with a
// connection that it inherited.
#include "t.h"
#include <spawn.h>
extern char **environ;
int main(int argc, char **argv)
{
	t_init();
	if (argc == 3) { // the exec'ed program: one byte stream goes on at the byte where it was
		int fd = atoi(argv[2]);
		char b[16];
		recv_all(fd, b, 5);
		CHECK(!memcmp(b, "after", 5));
		send_all(fd, "done", 4);
		EQ(recv(fd, b, 1, 0), 0);
		return 0;
	}
	int port, l = listen_on(&port), p[2], st;
	char b[16];
	pair(p);
	for (int i = 0; i < 20; i++) {
		pid_t kid;
		char *av[] = { "true", NULL };
		if (i % 4 == 0) {
			kid = fork();
			if (!kid) {
				execv("/bin/true", av);
				_exit(9);
			}
		} else if (i % 4 == 1) {
			kid = vfork();
			if (!kid) {
				execv("/bin/true", av);
				_exit(9);
			}
		} else if (i % 4 == 2)
			EQ(posix_spawn(&kid, "/bin/true", NULL, NULL, av, environ), 0);
		else {
			EQ(system("exit 3") >> 8, 3);
			kid = 0;
		}
		if (kid) {
			EQ(waitpid(kid, &st, 0), kid);
			EQ(st, 0);
		}
		send_all(p[i & 1], "hello", 5);
		recv_all(p[!(i & 1)], b, 5);
	}
	pid_t kid = fork_child();
	if (!kid) {
		char num[16];
		int fd = connect_to(port);
		send_all(fd, "before", 6);
		snprintf(num, sizeof num, "%d", fd);
		execl("/proc/self/exe", argv[0], "child", num, NULL);
		die("exec");
	}
	int fd = accept(l, NULL, NULL);
	recv_all(fd, b, 6);
	CHECK(!memcmp(b, "before", 6));
	send_all(fd, "after", 5);
	recv_all(fd, b, 4);
	shutdown(fd, SHUT_WR);
	reap(kid);
	EQ(recv(fd, b, 1, 0), 0);
	return t_ok("fork_exec");
}
