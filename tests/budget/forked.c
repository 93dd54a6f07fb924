// The system calls of a server's child that has its connection alone: forked ROUNDS. Run under strace (see
// test_forked.py): what lies between two getppid(2) of the child is counted.
//
// The child waits in an epoll instance, reads and answers, as a backend of a database does. The client's next request
// comes when the child sleeps.
#include "../apps/t.h"
#include <sys/syscall.h>

int main(int argc, char **argv)
{
	t_init();
	int rounds = argc > 1 ? atoi(argv[1]) : 100, port, l = listen_on(&port);
	char b[64] = "a request";
	pid_t client = fork_child();
	if (!client) {
		int fd = connect_to(port);
		for (int i = 0; i < rounds + 10; i++) {
			usleep(2000);
			send_all(fd, b, sizeof b);
			recv_all(fd, b, sizeof b);
		}
		_exit(0);
	}
	int fd = accept(l, NULL, NULL);
	CHECK(fd >= 0);
	pid_t kid = fork_child();
	if (!kid) {
		int ep = epoll_create1(0);
		struct epoll_event ev = { .events = EPOLLIN };
		nonblock(fd);
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev), 0);
		for (int i = 0; i < rounds + 10; i++) {
			if (i == 9) // the parent has closed its copy by then
				syscall(SYS_getppid);
			EQ(epoll_wait(ep, &ev, 1, -1), 1);
			EQ(recv(fd, b, sizeof b, 0), sizeof b);
			EQ(send(fd, b, sizeof b, 0), sizeof b);
			if (i == rounds + 8)
				syscall(SYS_getppid);
		}
		_exit(0);
	}
	close(fd);
	reap(kid);
	reap(client);
	return t_ok("forked");
}
