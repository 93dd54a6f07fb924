// A server whose soft limit of descriptors suffices for its clients by TCP, with the hard limit above it and with the same hard
// limit: each client process is answered. Where the hard limit leaves room, the program can open as many files as without
// NetACC, and its limit is what it was.
#include "t.h"
#include <sys/epoll.h>
enum { LIMIT = 128, CLIENTS = 60 };
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
static void server(int hard)
{
	int port, l = listen_on(&port), ready[2], stop[2], ep = epoll_create1(0), answered = 0;
	EQ(pipe(ready), 0);
	EQ(pipe(stop), 0);
	EQ(fcntl(l, F_SETFL, O_NONBLOCK), 0);
	struct epoll_event e = { .events = EPOLLIN, .data.fd = l };
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, l, &e), 0);
	pid_t kid[CLIENTS];
	for (int i = 0; i < CLIENTS; i++)
		if (!(kid[i] = fork_child())) {
			close(stop[1]);
			close(l);
			client(port, ready[1], stop[0]);
		}
	while (answered < CLIENTS) {
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
	for (int i = 0; i < CLIENTS; i++) {
		char b;
		EQ(read(ready[0], &b, 1), 1);
	}
	struct rlimit r;
	EQ(getrlimit(RLIMIT_NOFILE, &r), 0);
	EQ(r.rlim_cur, LIMIT);
	EQ(r.rlim_max, (rlim_t)hard);
	int highest = -1;
	for (int fd; (fd = dup(2)) >= 0;)
		highest = fd;
	EQ(errno, EMFILE);
	if (hard > LIMIT)
		EQ(highest, LIMIT - 1);
	close(stop[1]);
	for (int i = 0; i < CLIENTS; i++)
		reap(kid[i]);
}
int main(int argc, char **argv)
{
	t_init();
	if (argc == 2) {
		server(atoi(argv[1]));
		return 0;
	}
	static const char *const hard[] = { "4096", "128" };
	for (int i = 0; i < 2; i++) {
		pid_t kid = fork_child();
		if (!kid) {
			struct rlimit r = { LIMIT, atoi(hard[i]) };
			EQ(setrlimit(RLIMIT_NOFILE, &r), 0);
			execl("/proc/self/exe", argv[0], hard[i], NULL);
			CHECK(0);
		}
		reap(kid);
	}
	return t_ok("nofile_clients");
}
