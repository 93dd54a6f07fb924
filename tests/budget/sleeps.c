// Sleeps and wakes, whose system calls are counted from outside: sleeps server KIND ROUNDS, sleeps client KIND ROUNDS PORT [USER].
// Each round the server sleeps in the call KIND until the client, which has let it fall asleep, sends a byte or connects.
#include "../apps/t.h"
#include <grp.h>
static void answer(int fd)
{
	char c;
	EQ(recv(fd, &c, 1, MSG_DONTWAIT), 1);
	EQ(send(fd, &c, 1, MSG_NOSIGNAL), 1);
}
static void server(const char *kind, int rounds)
{
	int port, l = listen_on(&port), ep = epoll_create1(EPOLL_CLOEXEC);
	printf("%d\n", port);
	fflush(stdout);
	if (!strcmp(kind, "accept")) {
		for (int i = 0; i < rounds; i++) {
			int fd = accept(l, NULL, NULL);
			CHECK(fd >= 0);
			close(fd);
		}
		return;
	}
	int fd = accept(l, NULL, NULL);
	CHECK(fd >= 0);
	struct epoll_event e = { .events = EPOLLIN };
	struct pollfd p = { .fd = fd, .events = POLLIN };
	char c;
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, strcmp(kind, "epoll_wait") ? l : fd, &e), 0);
	for (int i = 0; i < rounds; i++) {
		if (!strcmp(kind, "recv")) {
			EQ(recv(fd, &c, 1, 0), 1);
			EQ(send(fd, &c, 1, MSG_NOSIGNAL), 1);
			continue;
		}
		if (!strcmp(kind, "poll"))
			EQ(poll(&p, 1, -1), 1);
		else
			EQ(epoll_wait(ep, &e, 1, -1), 1);
		answer(fd);
	}
}
static void client(const char *kind, int rounds, int port)
{
	int fd = -1;
	char c = 'x';
	for (int i = 0; i < rounds; i++) {
		usleep(4000);
		if (fd < 0 || !strcmp(kind, "accept")) {
			close(fd);
			fd = connect_to(port);
			usleep(4000);
		}
		if (strcmp(kind, "accept")) {
			send_all(fd, &c, 1);
			recv_all(fd, &c, 1);
		}
	}
	recv(fd, &c, 1, 0); // the server's end
}
int main(int argc, char **argv)
{
	t_init();
	CHECK(argc > 3);
	if (argc > 5) {
		EQ(setgroups(0, NULL), 0);
		EQ(setgid(atoi(argv[5])), 0);
		EQ(setuid(atoi(argv[5])), 0);
	}
	if (strcmp(argv[1], "client"))
		server(argv[2], atoi(argv[3]));
	else
		client(argv[2], atoi(argv[3]), atoi(argv[4]));
	return 0;
}
