// Two processes have a socket before it is connected or listens, by a fork or by SCM_RIGHTS, and either of them binds, listens,
// connects or executes another program: what one does holds for both, and no connection or byte is lost.
#include "t.h"
#include <spawn.h>
extern char **environ;
static char self[500];
static void say(int u, int what) { EQ(write(u, &what, sizeof what), sizeof what); }
static int told(int u)
{
	int what;
	EQ(read(u, &what, sizeof what), sizeof what);
	return what;
}
static void bind_any(int s)
{
	struct sockaddr_in a = addr4(0);
	EQ(bind(s, (struct sockaddr *)&a, sizeof a), 0);
}
static int dial(int s, int port)
{
	struct sockaddr_in a = addr4(port);
	return connect(s, (struct sockaddr *)&a, sizeof a);
}
struct two { // the first process's view
	int s, u;
	pid_t kid;
};
static struct two share(int passes, int bound, void (*other)(int s, int u))
{
	struct two t = { .s = -1 };
	int u[2];
	EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, u), 0);
	for (int turn = 0; turn < 2; turn++) {
		if (turn == passes) {
			t.s = socket(AF_INET, SOCK_STREAM, 0);
			if (bound)
				bind_any(t.s);
		} else {
			t.kid = fork_child();
			if (!t.kid) {
				int s = passes ? take_fd(u[1]) : t.s;
				close(u[0]);
				other(s, u[1]);
				_exit(0);
			}
		}
	}
	close(u[1]);
	t.u = u[0];
	if (passes)
		pass_fd(t.u, t.s);
	return t;
}
static void end(struct two t)
{
	close(t.s);
	reap(t.kid);
	close(t.u);
}
static pid_t client(struct two t, int port) // asks and is answered
{
	pid_t kid = fork_child();
	if (kid)
		return kid;
	char b[6];
	close(t.s);
	int c = connect_to(port);
	send_all(c, "client", 6);
	recv_all(c, b, 6);
	CHECK(!memcmp(b, "answer", 6));
	EQ(recv(c, b, 1, 0), 0);
	_exit(0);
}
static void serve(int l, int polls)
{
	char b[6];
	if (polls)
		CHECK(ready(l, POLLIN, 10000) & POLLIN);
	int c = accept(l, NULL, NULL);
	CHECK(c >= 0);
	recv_all(c, b, 6);
	CHECK(!memcmp(b, "client", 6));
	send_all(c, "answer", 6);
	close(c);
}
static void listens(int s, int u)
{
	EQ(listen(s, 16), 0);
	say(u, port_of(s));
	EQ(told(u), 'e');
}
static void binds(int s, int u)
{
	bind_any(s);
	listens(s, u);
}
static void listens_elsewhere(int s, int u)
{
	char a[2][12], *av[] = { self, "listen", a[0], a[1], NULL };
	sprintf(a[0], "%d", s);
	sprintf(a[1], "%d", u);
	execv(self, av);
	_exit(9);
}
static void accepts(int s, int u)
{
	EQ(told(u), 'l');
	serve(s, 0);
	serve(s, 1);
}
static void fails_and_accepts(int s, int u)
{
	FAILS(dial(s, told(u)), ECONNREFUSED);
	say(u, 'f');
	accepts(s, u);
}
static void leaves(int s, int u) // connections wait that it has seen and not accepted
{
	EQ(listen(s, 16), 0);
	EQ(told(u), 'l');
	CHECK(ready(s, POLLIN, 0) == 0); // from now on it may be found
	say(u, 'p');
	CHECK(ready(s, POLLIN, 10000) & POLLIN);
	EQ(told(u), 'c');
	close(s);
	say(u, 'g');
	EQ(told(u), 'e');
}
static void connects(int s, int u)
{
	EQ(dial(s, told(u)), 0);
	send_all(s, "1", 1);
	say(u, 'c');
	EQ(told(u), 'e');
}
static void unblocks(int s, int u)
{
	nonblock(s);
	say(u, 'n');
	EQ(told(u), 'e');
}
static void one_listens(int passes, int bound, void (*other)(int s, int u))
{
	for (int polls = 0; polls < 2; polls++) {
		struct two t = share(passes, bound, other);
		int port = told(t.u);
		pid_t c = client(t, port);
		serve(t.s, polls);
		reap(c);
		say(t.u, 'e');
		end(t);
	}
}
static void other_accepts(int passes, int fails)
{
	struct two t = share(passes, 1, fails ? fails_and_accepts : accepts);
	if (fails) {
		int port, l = listen_on(&port);
		close(l);
		say(t.u, port);
		EQ(told(t.u), 'f');
	}
	EQ(listen(t.s, 16), 0);
	pid_t c = client(t, port_of(t.s));
	say(t.u, 'l');
	pid_t d = client(t, port_of(t.s));
	reap(c);
	reap(d);
	end(t);
}
// The first process accepts, and then no more; it does not close the listener.
static void other_takes_over(int passes)
{
	struct two t = share(passes, 1, accepts);
	EQ(listen(t.s, 16), 0);
	pid_t c = client(t, port_of(t.s));
	serve(t.s, 0);
	reap(c);
	nonblock(t.s);
	EQ(fcntl(t.s, F_SETFL, O_RDWR), 0); // holds for both: the other's accept blocks
	say(t.u, 'l');
	for (int i = 0; i < 2; i++)
		reap(client(t, port_of(t.s)));
	end(t);
}
static void one_leaves(int passes)
{
	enum { N = 4 };
	struct two t = share(passes, 1, leaves);
	EQ(listen(t.s, 16), 0);
	int port = port_of(t.s), c[N], left[2];
	EQ(pipe(left), 0);
	char b[6];
	say(t.u, 'l');
	EQ(told(t.u), 'p');
	pid_t kid = fork_child();
	if (!kid) {
		close(t.s);
		for (int i = 0; i < N; i++) {
			c[i] = connect_to(port);
			send_all(c[i], "client", 6);
		}
		say(t.u, 'c'); // it makes no call on them until the other has left
		EQ(told(t.u), 'g');
		EQ(write(left[1], "l", 1), 1);
		for (int i = 0; i < N; i++) {
			recv_all(c[i], b, 6);
			CHECK(!memcmp(b, "answer", 6));
		}
		_exit(0);
	}
	EQ(read(left[0], b, 1), 1);
	close(left[0]), close(left[1]);
	for (int i = 0; i < N; i++)
		serve(t.s, i % 2);
	reap(kid);
	say(t.u, 'e');
	end(t);
}
static void one_connects(int passes, int polls)
{
	int port, l = listen_on(&port);
	struct two t = share(passes, 0, connects);
	struct sockaddr_in a;
	socklen_t n = sizeof a;
	char b[2];
	say(t.u, port);
	int s = accept(l, NULL, NULL);
	EQ(told(t.u), 'c');
	EQ(getpeername(t.s, (struct sockaddr *)&a, &n), 0);
	EQ(ntohs(a.sin_port), port);
	EQ(dial(t.s, port), -1);
	EQ(errno, EISCONN);
	send_all(t.s, "2", 1); // behind the other's
	recv_all(s, b, 2);
	CHECK(!memcmp(b, "12", 2));
	if (polls)
		EQ(ready(t.s, POLLIN, 0), 0);
	send_all(s, "x", 1);
	if (polls)
		CHECK(ready(t.s, POLLIN, 10000) & POLLIN);
	recv_all(t.s, b, 1);
	say(t.u, 'e');
	end(t);
	EQ(recv(s, b, 1, 0), 0); // both have closed it
	close(s);
	close(l);
}
static void mode(int passes)
{
	struct two t = share(passes, 1, unblocks);
	EQ(told(t.u), 'n');
	CHECK(fcntl(t.s, F_GETFL) & O_NONBLOCK);
	EQ(listen(t.s, 1), 0);
	FAILS(accept(t.s, NULL, NULL), EAGAIN);
	say(t.u, 'e');
	end(t);
}
static void spawned(void) // the program knows the number without being told
{
	int u[2], s = socket(AF_INET, SOCK_STREAM, 0), unused = socket(AF_INET, SOCK_STREAM, 0);
	char n[2][12], *av[] = { self, "inherit", n[0], n[1], NULL };
	pid_t kid;
	EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, u), 0);
	sprintf(n[0], "%d", s + 1000);
	sprintf(n[1], "%d", u[1] + 1000);
	EQ(posix_spawn(&kid, self, NULL, NULL, av, environ), 0);
	close(u[1]);
	int port = told(u[0]);
	pid_t c = client((struct two){ .s = s }, port);
	serve(s, 1);
	reap(c);
	say(u[0], 'e');
	reap(kid);
	close(u[0]);
	close(s);
	close(unused);
}
int main(int argc, char **argv)
{
	t_init();
	if (argc == 4 && !strcmp(argv[1], "listen"))
		return listens(atoi(argv[2]), atoi(argv[3])), 0;
	if (argc == 4 && !strcmp(argv[1], "inherit"))
		return binds(atoi(argv[2]) - 1000, atoi(argv[3]) - 1000), 0;
	CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
	for (int passes = 0; passes < 2; passes++) {
		one_listens(passes, 1, listens);
		one_listens(passes, 0, binds);
		one_listens(passes, 1, listens_elsewhere);
		other_accepts(passes, 0);
		other_accepts(passes, 1);
		other_takes_over(passes);
		one_leaves(passes);
		one_connects(passes, 0);
		one_connects(passes, 1);
		mode(passes);
	}
	spawned();
	return t_ok("shared_unconnected");
}
