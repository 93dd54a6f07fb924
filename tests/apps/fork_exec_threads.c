// A child of the server runs another program with the connection as its standard output, while several threads of the
// client check it: whichever of them notices first, the end of that program is the end of the stream.
#include "t.h"
enum { ROUNDS = 800, THREADS = 2 };
static int fd;
static char *self;
static void *reader(void *x)
{
	long got = 0;
	char b[100];
	for (;;) {
		ssize_t r = recv(fd, b, sizeof b, MSG_DONTWAIT);
		if (!r)
			return (void *)got;
		CHECK(r > 0 || errno == EAGAIN);
		got += r > 0 ? r : 0;
	}
	return x;
}
static void client(int port)
{
	// As many rounds as the machine makes in half of the program's time: each has a fork and an exec.
	double end = now() + t_limit() / 2;
	for (int i = 0; i < ROUNDS && now() < end; i++) {
		pthread_t t[THREADS];
		long got = 0;
		fd = connect_to(port);
		send_all(fd, (unsigned char *)"begin", 5);
		for (int k = 0; k < THREADS; k++)
			EQ(pthread_create(&t[k], NULL, reader, NULL), 0);
		for (int k = 0; k < THREADS; k++) {
			void *n;
			EQ(pthread_join(t[k], &n), 0);
			got += (long)n;
		}
		EQ(got, 3);
		close(fd);
	}
	close(connect_to(port)); // the last one, which says nothing
}
int main(int argc, char **argv)
{
	static char path[500];
	t_init();
	if (argc > 1 && !strcmp(argv[1], "served"))
		return write(1, "end", 3) != 3;
	CHECK(readlink("/proc/self/exe", path, sizeof path - 1) > 0);
	self = path;
	int port, l = listen_on(&port);
	fcntl(l, F_SETFD, FD_CLOEXEC);
	pid_t kid = fork_child();
	if (!kid) {
		close(l);
		client(port);
		_exit(0);
	}
	for (;;) {
		unsigned char b[5];
		int c = accept(l, NULL, NULL);
		CHECK(c >= 0);
		if (!recv(c, b, 1, MSG_PEEK))
			break;
		recv_all(c, b, sizeof b);
		pid_t other = fork_child();
		if (!other) {
			dup2(c, 1);
			close(c);
			execl(self, self, "served", NULL);
			_exit(9);
		}
		close(c);
		reap(other);
	}
	reap(kid);
	return t_ok("fork_exec_threads");
}
