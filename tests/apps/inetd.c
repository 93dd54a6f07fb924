// A connection becomes the standard input and output of another program, which need not know the library: by fork and
// exec, posix_spawn, and popen, with and without unread bytes. The program sees an IPv4 TCP socket.
#include "t.h"
#include <netinet/tcp.h>
#include <spawn.h>
extern char **environ;
enum { BULK = 700000 };
static char *self;
static int served(void) // what is executed: checks its socket, then returns what it reads, inverted
{
	struct sockaddr_in a;
	socklen_t n = sizeof a;
	int on = 1;
	EQ(getpeername(0, (struct sockaddr *)&a, &n), 0);
	EQ(a.sin_family, AF_INET);
	EQ(a.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
	EQ(setsockopt(0, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on), 0);
	static char b[40000];
	ssize_t r;
	while ((r = read(0, b, sizeof b)) > 0) {
		for (int i = 0; i < r; i++)
			b[i] = ~b[i];
		for (ssize_t k = 0; k < r;) {
			ssize_t w = write(1, b + k, r - k);
			CHECK(w > 0);
			k += w;
		}
	}
	EQ(r, 0);
	return 0;
}
static unsigned char b[BULK];
static int sent_before;
static void *sender(void *x)
{
	int fd = *(int *)x;
	send_all(fd, b + sent_before, BULK - sent_before);
	shutdown(fd, SHUT_WR);
	return NULL;
}
static void client(int fd, int early, int how)
{
	// The first bytes are there before the other program is.
	for (int i = 0; i < BULK; i++)
		b[i] = pat1(i, how);
	send_all(fd, b, early);
	pthread_t t;
	sent_before = early;
	EQ(pthread_create(&t, NULL, sender, &fd), 0);
	static unsigned char g[BULK];
	recv_all(fd, g, BULK);
	for (int i = 0; i < BULK; i++)
		if (g[i] != (unsigned char)~b[i])
			die("wrong byte at %d", i);
	pthread_join(t, NULL);
	EQ(recv(fd, g, 1, 0), 0);
	close(fd);
}
static pid_t start(int fd, int how)
{
	char *av[] = { self, "served", NULL };
	pid_t kid = 0;
	if (how % 2) { // the program does not load the library
		unsetenv("LD_PRELOAD");
	}
	if (how / 2 == 0) {
		kid = fork();
		if (!kid) {
			dup2(fd, 0);
			dup2(fd, 1);
			close(fd);
			execv(self, av);
			_exit(9);
		}
	} else if (how / 2 == 1) {
		posix_spawn_file_actions_t fa;
		posix_spawn_file_actions_init(&fa);
		posix_spawn_file_actions_adddup2(&fa, fd, 0);
		posix_spawn_file_actions_adddup2(&fa, fd, 1);
		EQ(posix_spawn(&kid, self, &fa, NULL, av, environ), 0);
		posix_spawn_file_actions_destroy(&fa);
	} else {
		char cmd[600];
		snprintf(cmd, sizeof cmd, "%s served <&%d >&%d &", self, fd, fd);
		FILE *p = popen(cmd, "r");
		CHECK(p);
		pclose(p);
	}
	return kid;
}
int main(int argc, char **argv)
{
	static char path[500];
	t_init();
	if (argc > 1 && !strcmp(argv[1], "served"))
		return served();
	CHECK(readlink("/proc/self/exe", path, sizeof path - 1) > 0);
	self = path;
	char *preload = getenv("LD_PRELOAD") ? strdup(getenv("LD_PRELOAD")) : NULL;
	int port, l = listen_on(&port);
	fcntl(l, F_SETFD, FD_CLOEXEC);
	for (int how = 0; how < 6; how++)
		for (int early = 0; early <= 300000; early += 100000) {
			pid_t kid = fork_child();
			if (!kid) {
				close(l);
				client(connect_to(port), early, how);
				_exit(0);
			}
			int fd = accept(l, NULL, NULL);
			CHECK(fd >= 0);
			if (early) { // something of it is read here
				unsigned char b[1000];
				recv_all(fd, b, sizeof b);
				for (int i = 0; i < 1000; i++)
					b[i] = ~b[i];
				send_all(fd, b, sizeof b);
			}
			pid_t other = start(fd, how);
			close(fd);
			if (preload)
				setenv("LD_PRELOAD", preload, 1);
			reap(kid);
			if (other)
				reap(other);
		}
	return t_ok("inetd");
}
