// Of two programs of different users one forks while the other has no descriptor left. That is not the end of anything:
// the connection goes on in both copies of the process that forked, and its end is seen when the last of them ends.
#include "t.h"
#include <grp.h>
enum { STRANGER = 12345, LIMIT = 200 };
static int held[LIMIT], n_held;
static void take_all(void)
{
	for (int fd; (fd = dup(2)) >= 0;)
		held[n_held++] = fd;
	EQ(errno, EMFILE);
}
static void give_back(void)
{
	while (n_held)
		close(held[--n_held]);
}
static int look(int fd) // one look without waiting: the byte, 0 at the end, -1 if there is nothing
{
	unsigned char c;
	ssize_t n = recv(fd, &c, 1, MSG_DONTWAIT);
	if (n < 0)
		EQ(errno, EAGAIN);
	return n < 0 ? -1 : n ? c : 0;
}
static void client(int port, int say, int hear)
{
	char c;
	EQ(setgroups(0, NULL), 0);
	EQ(setgid(STRANGER), 0);
	EQ(setuid(STRANGER), 0);
	int fd = connect_to(port);
	send_all(fd, "a", 1);
	EQ(read(hear, &c, 1), 1); // the other side has no descriptor left
	for (int kid = 0; kid < 2; kid++) {
		pid_t p = fork_child();
		if (p)
			continue;
		close(say);
		if (!kid) { // sleeps on the connection, so that it is the one that the other side is connected to
			recv_all(fd, &c, 1);
			_exit(0);
		}
		EQ(read(hear, &c, 1), 1);
		send_all(fd, "c", 1);
		EQ(read(hear, &c, 1), 1);
		_exit(0);
	}
	send_all(fd, "b", 1);
	_exit(0);
}
int main(void)
{
	t_init();
	if (getuid())
		t_skip("strangers_emfile", "only root can be two users");
	struct rlimit r = { LIMIT, LIMIT };
	EQ(setrlimit(RLIMIT_NOFILE, &r), 0);
	for (int round = 0; round < 4; round++) {
		int asks = round & 1, early = round & 2; // polls or sleeps; gets its descriptors back before or after the end
		int port, l = listen_on(&port), say[2], hear[2];
		EQ(pipe(say), 0);
		EQ(pipe(hear), 0);
		pid_t kid = fork_child();
		if (!kid) {
			close(l);
			close(hear[0]);
			close(say[1]);
			client(port, hear[1], say[0]);
		}
		close(hear[1]);
		close(say[0]);
		int fd = accept(l, NULL, NULL);
		CHECK(fd >= 0);
		unsigned char c;
		recv_all(fd, &c, 1);
		EQ(c, 'a');
		take_all();
		EQ(write(say[1], "x", 1), 1);
		// The process that connected ends, and its children go on.
		if (asks)
			for (int got; (got = look(fd)) != 'b';)
				EQ(got, -1);
		else
			recv_all(fd, &c, 1);
		reap(kid);
		for (int i = 0; i < 50; i++, usleep(1000))
			EQ(look(fd), -1);
		if (early)
			give_back();
		send_all(fd, "k", 1); // for the child that sleeps, which ends then
		usleep(100000);
		EQ(look(fd), -1);
		EQ(write(say[1], "x", 1), 1);
		recv_all(fd, &c, 1);
		EQ(c, 'c');
		EQ(look(fd), -1);
		give_back();
		EQ(write(say[1], "x", 1), 1);
		EQ(recv(fd, &c, 1, 0), 0);
		close(fd);
		close(l);
		close(say[1]);
		close(hear[0]);
	}
	return t_ok("strangers_emfile");
}
