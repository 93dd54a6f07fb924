// A server that forks for each connection, and a client of another user. The child that has a connection ends before the
// client has heard of it: the client sees the end all the same, in the wait that it is in and in a later one.
#include "t.h"
#include <grp.h>
enum { STRANGER = 12345, ROUNDS = 30 };
static void become_stranger(void)
{
	EQ(setgroups(0, NULL), 0);
	EQ(setgid(STRANGER), 0);
	EQ(setuid(STRANGER), 0);
}
static void server(int l, int done)
{
	char c = 'd';
	for (int i = 0; i < ROUNDS; i++) {
		int fd = accept(l, NULL, NULL);
		CHECK(fd >= 0);
		pid_t kid = fork_child();
		if (!kid) {
			close(l);
			recv_all(fd, &c, 1);
			if (i % 3 == 2)
				send_all(fd, "answer", 6);
			_exit(0);
		}
		close(fd);
		reap(kid);
		EQ(write(done, &c, 1), 1);
	}
	_exit(0);
}
int main(void)
{
	t_init();
	if (getuid())
		t_skip("strangers_child_ends", "only root can be two users");
	int port, done[2], l = listen_on(&port);
	char c = 'q', b[6];
	EQ(pipe(done), 0);
	pid_t kid = fork_child();
	if (!kid) {
		become_stranger();
		server(l, done[1]);
	}
	close(l);
	for (int i = 0; i < ROUNDS; i++) {
		int fd = connect_to(port);
		send_all(fd, &c, 1);
		if (i % 3) // otherwise the client sleeps while the child ends
			EQ(read(done[0], &c, 1), 1);
		if (i % 3 == 2)
			recv_all(fd, b, 6);
		EQ(recv(fd, b, 1, 0), 0);
		if (i % 3 == 0)
			EQ(read(done[0], &c, 1), 1);
		close(fd);
	}
	reap(kid);
	return t_ok("strangers_child_ends");
}
