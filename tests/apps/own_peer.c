// One thread has both ends of a connection, and a child that it started has one of them as its standard output. The
// thread goes on with that end, before any call on the other one: blocking, after poll and epoll, with bytes under way,
// and before accept.
#include "t.h"

static void say(int out, const char *word)
{
	pid_t kid = fork_child();
	if (!kid) {
		EQ(dup2(out, 1), 1);
		execlp("echo", "echo", "-n", word, NULL);
		die("exec");
	}
	reap(kid);
}
static void is(int fd, const char *text)
{
	char b[64] = "";
	recv_all(fd, b, strlen(text));
	if (memcmp(b, text, strlen(text)))
		die("%s came instead of %s", b, text);
}
static void ends(int p[2])
{
	send_all(p[0], "x", 1);
	is(p[1], "x");
	send_all(p[1], "y", 1);
	is(p[0], "y");
	close(p[0]);
	EQ(recv(p[1], &(char){ 0 }, 1, 0), 0);
	close(p[1]);
}
int main(void)
{
	t_init();
	int p[2];
	for (int side = 0; side < 2; side++) {
		pair(p);
		int a = p[side], b = p[!side];
		say(a, "one");
		send_all(a, "two", 3);
		is(b, "onetwo");
		ends(p);

		// unread bytes in both directions
		pair(p);
		a = p[side], b = p[!side];
		send_all(a, "before", 6);
		send_all(b, "theirs", 6);
		say(a, "one");
		send_all(a, "two", 3);
		is(a, "theirs");
		send_all(b, "later", 5);
		is(a, "later");
		is(b, "beforeonetwo");
		ends(p);

		// a reader first: what the other end writes afterwards wakes it
		pair(p);
		a = p[side], b = p[!side];
		say(a, "one");
		send_all(b, "theirs", 6);
		is(a, "theirs");
		is(b, "one");
		ends(p);

		// poll(2) and epoll(7) for room
		for (int how = 0; how < 3; how++) {
			pair(p);
			a = nonblock(p[side]), b = p[!side];
			int ep = epoll_create1(0);
			struct epoll_event e = { .events = how == 2 ? EPOLLOUT | EPOLLET : EPOLLOUT };
			EQ(epoll_ctl(ep, EPOLL_CTL_ADD, a, &e), 0);
			EQ(epoll_wait(ep, &e, 1, 1000), 1);
			say(a, "one");
			while (send(a, "two", 3, 0) != 3) {
				EQ(errno, EAGAIN);
				if (how == 0)
					CHECK(ready(a, POLLOUT, 10000) & POLLOUT);
				else
					EQ(epoll_wait(ep, &e, 1, 10000), 1);
			}
			is(b, "onetwo");
			close(ep);
			fcntl(a, F_SETFL, 0);
			ends(p);
		}
	}
	// not accepted yet
	int port, l = listen_on(&port);
	p[0] = connect_to(port);
	say(p[0], "one");
	send_all(p[0], "two", 3);
	p[1] = accept(l, NULL, NULL);
	is(p[1], "onetwo");
	ends(p);
	return t_ok("own_peer");
}
