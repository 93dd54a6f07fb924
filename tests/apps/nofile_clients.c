// A server whose soft limit of descriptors suffices for its clients by TCP, with the hard limit above it and with the same hard
// limit: each client process is answered. Where the hard limit leaves room, the program can open as many files as without
// NetACC, and its limit is what it was, also if it has raised the soft one itself; so it is with a limit of a few dozen, where all
// stays on TCP.
#include "t.h"
#include <sys/epoll.h>
enum { MOST_CLIENTS = 60 };
static void client(int port, int ready, int stop)
{
	char b = 'a';
	int fd = connect_to(port);
	send_all(fd, &b, 1);
	recv_all(fd, &b, 1);
	EQ(b, 'a');
	EQ(write(ready, &b, 1), 1);
	CHECK(read(stop, &b, 1) == 0);
	_exit(0);
}
static void server(int limit, int hard, int clients)
{
	int port, l = listen_on(&port), ready[2], stop[2], ep = epoll_create1(0), answered = 0;
	struct rlimit r = { limit, hard };
	EQ(setrlimit(RLIMIT_NOFILE, &r), 0); // it may have begun with a lower one
	EQ(pipe(ready), 0);
	EQ(pipe(stop), 0);
	EQ(fcntl(l, F_SETFL, O_NONBLOCK), 0);
	struct epoll_event e = { .events = EPOLLIN, .data.fd = l };
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, l, &e), 0);
	pid_t kid[MOST_CLIENTS];
	for (int i = 0; i < clients; i++)
		if (!(kid[i] = fork_child())) {
			close(stop[1]);
			close(l);
			client(port, ready[1], stop[0]);
		}
	while (answered < clients) {
		char b;
		EQ(epoll_wait(ep, &e, 1, -1), 1);
		if (e.data.fd != l) {
			recv_all(e.data.fd, &b, 1);
			send_all(e.data.fd, &b, 1);
			answered++;
			continue;
		}
		int fd = accept(l, NULL, NULL);
		if (fd < 0) {
			EQ(errno, EAGAIN);
			continue;
		}
		e.data.fd = fd;
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e), 0);
	}
	for (int i = 0; i < clients; i++) {
		char b;
		EQ(read(ready[0], &b, 1), 1);
	}
	EQ(getrlimit(RLIMIT_NOFILE, &r), 0);
	EQ(r.rlim_cur, (rlim_t)limit);
	EQ(r.rlim_max, (rlim_t)hard);
	int highest = -1;
	for (int fd; (fd = dup(2)) >= 0;)
		highest = fd;
	EQ(errno, EMFILE);
	if (hard > limit || limit < 40)
		EQ(highest, limit - 1);
	close(stop[1]);
	for (int i = 0; i < clients; i++)
		reap(kid[i]);
}
int main(int argc, char **argv)
{
	t_init();
	if (argc == 4) {
		server(atoi(argv[1]), atoi(argv[2]), atoi(argv[3]));
		return 0;
	}
	static char *const cases[][4] = { { "128", "4096", "60", "128" }, { "128", "4096", "60", "64" }, { "128", "128", "60", "128" },
		{ "32", "32", "20", "32" } };
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		pid_t kid = fork_child();
		if (!kid) {
			struct rlimit r = { atoi(cases[i][3]), atoi(cases[i][1]) };
			EQ(setrlimit(RLIMIT_NOFILE, &r), 0);
			execl("/proc/self/exe", argv[0], cases[i][0], cases[i][1], cases[i][2], NULL);
			CHECK(0);
		}
		reap(kid);
	}
	return t_ok("nofile_clients");
}
