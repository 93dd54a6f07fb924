// A blocking listener survives every kind of exec and is passed by SCM_RIGHTS: the next program finds it blocking and
// accepts with it. The process that keeps it goes on as before, also if an exec fails.
#include "t.h"
extern char **environ;
static int mode_of(int fd) { return fcntl(fd, F_GETFL) & O_NONBLOCK; }
static int next(int argc, char **argv) // the program after exec: NAME next FD MODE A B C D E F G H
{
	t_init();
	EQ(argc, 12);
	for (int i = 4; i < 12; i++) { // every argument in its place
		char want[2] = { (char)('A' + i - 4), 0 };
		if (strcmp(argv[i], want))
			die("argument %d is %s", i, argv[i]);
	}
	CHECK(getenv("PATH") != NULL);
	EQ(mode_of(atoi(argv[2])), atoi(argv[3]) ? O_NONBLOCK : 0);
	if (atoi(argv[3]))
		return 0;
	int s = accept(atoi(argv[2]), NULL, NULL); // nobody is there yet
	CHECK(s >= 0);
	send_all(s, "next", 4);
	return 0;
}
#define LIST "exec_listener", "next", fd, mode, "A", "B", "C", "D", "E", "F", "G", "H", (char *)NULL
static void run(int how, char *fd, char *mode)
{
	static char me[4096];
	ssize_t n = readlink("/proc/self/exe", me, sizeof me - 1);
	CHECK(n > 0);
	me[n] = 0;
	char *argv[] = { LIST };
	switch (how) {
	case 0: execve(me, argv, environ); break;
	case 1: execv(me, argv); break;
	case 2: execvp(me, argv); break;
	case 3: execvpe(me, argv, environ); break;
	case 4: fexecve(open(me, O_RDONLY | O_CLOEXEC), argv, environ); break;
	case 5: execveat(AT_FDCWD, me, argv, environ, 0); break;
	case 6: execl(me, LIST); break;
	case 7: execlp(me, LIST); break;
	default: execle(me, LIST, environ);
	}
	_exit(9);
}
int main(int argc, char **argv)
{
	if (argc > 1)
		return next(argc, argv);
	t_init();
	int u[2], port;
	char b[8], text[16];
	EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, u), 0);
	pid_t other = fork_child();
	if (!other) {
		int l = take_fd(u[1]);
		EQ(mode_of(l), 0);
		EQ(write(u[1], "!", 1), 1);
		int s = accept(l, NULL, NULL);
		CHECK(s >= 0);
		send_all(s, "next", 4);
		_exit(0);
	}
	for (int how = 0; how < 9; how++)
		for (int nb = 0; nb < 2; nb++) {
			int l = listen_on(&port);
			if (nb)
				nonblock(l);
			snprintf(text, sizeof text, "%d", l);
			pid_t kid = fork_child();
			if (!kid)
				run(how, text, nb ? "1" : "0");
			if (!nb) {
				close(l); // the new program has it
				int c = connect_to(port);
				recv_all(c, b, 4);
				CHECK(!memcmp(b, "next", 4));
				close(c);
			} else {
				EQ(mode_of(l), O_NONBLOCK);
				close(l);
			}
			reap(kid);
		}
	int l = listen_on(&port);
	EQ(execl("/no/such/program", "x", NULL), -1);
	EQ(errno, ENOENT);
	EQ(mode_of(l), 0);
	for (int i = 0; i < 3; i++) {
		int c = connect_to(port), s = accept(l, NULL, NULL);
		close(c);
		close(s);
	}
	pass_fd(u[0], l);
	EQ(read(u[0], b, 1), 1);
	close(l); // the other process has it
	int c = connect_to(port);
	recv_all(c, b, 4);
	reap(other);
	return t_ok("exec_listener");
}
