// A connection becomes a kernel socket in every combination of the moment (before a byte, with bytes unread on both
// sides, with full buffers, with one direction ended, before accept), the side that causes it (client, server, both),
// the cause (a descriptor that is passed, an owner for signals), a child that shares it or not, and the process that is
// killed afterwards (none, the client's, the server's). Each byte that is read is the next one of its stream, and the
// end is that of TCP.
#include "t.h"
enum moment { START, UNREAD, FULL, HALF, QUEUED, MOMENTS };
enum killed { NOBODY, CLIENT, SERVER, WHO };
enum { PIECE = 3000, STEP = 10000 };
struct cell { enum moment moment; int sides, way, shared; enum killed killed; };
struct end { // one side of a connection
	int fd, key;
	uint64_t sent, got;
	pid_t child;
};
static int pipes[4][2]; // to the client, to the server: signals; from the client, from the server: numbers
static void say(int n, uint64_t what) { EQ(write(pipes[n][1], &what, sizeof what), sizeof what); }
static uint64_t hear(int n)
{
	uint64_t what;
	EQ(read(pipes[n][0], &what, sizeof what), sizeof what);
	return what;
}
static void give(struct end *e, uint64_t most) // without waiting
{
	unsigned char b[STEP];
	while (most) {
		size_t n = most < sizeof b ? most : sizeof b;
		pat_fill(b, n, e->sent, e->key);
		ssize_t r = send(e->fd, b, n, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (r < 0 && errno == EAGAIN)
			return;
		if (r <= 0)
			die("send gives %zd after %llu bytes", r, (unsigned long long)e->sent);
		e->sent += r;
		most -= r;
	}
}
static void go(struct end *e, int way)
{
	int u[2];
	if (way)
		EQ(fcntl(e->fd, F_SETOWN, getpid()), 0);
	else {
		EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, u), 0);
		pass_fd(u[0], e->fd);
		int back = take_fd(u[1]);
		close(e->fd);
		close(u[0]);
		close(u[1]);
		e->fd = back;
	}
}
static void share(struct end *e) // with a child that keeps it until the end of this process
{
	int p[2];
	char c;
	EQ(pipe(p), 0);
	e->child = fork_child();
	if (!e->child) {
		close(p[1]);
		_exit(read(p[0], &c, 1));
	}
	close(p[0]);
}
// Reads to the end, or to an error, which is returned.
static int drain(struct end *e)
{
	unsigned char b[STEP];
	for (;;) {
		ssize_t r = recv(e->fd, b, sizeof b, 0);
		if (r <= 0)
			return r ? errno : 0;
		pat_check(b, r, e->got, !e->key);
		e->got += r;
	}
}
// What one side does. A side that is killed has read nothing; the other one reads all that comes.
static void side(const struct cell *c, int server, int l, int port)
{
	struct end e = { .key = server };
	int late = c->moment == QUEUED;
	if (server) {
		if (late)
			EQ(hear(1), 1);
		e.fd = accept(l, NULL, NULL);
		CHECK(e.fd >= 0);
	} else {
		e.fd = connect_to(port);
	}
	if (c->shared)
		share(&e);
	if (c->moment == FULL)
		give(&e, UINT64_MAX);
	else if (c->moment != START && !(server && late))
		give(&e, PIECE);
	if (c->moment == HALF && !server)
		EQ(shutdown(e.fd, SHUT_WR), 0);
	if (!server && late) { // both have it done, one before the other knows of the connection
		if (c->sides & 1)
			go(&e, c->way);
		say(1, 1);
	}
	say(2 + server, e.sent);
	EQ(hear(server), 2); // both are where they are to be
	if (c->sides >> server & 1 && !(late && !server))
		go(&e, c->way);
	say(2 + server, 3);
	uint64_t theirs = hear(server); // what the other side has sent
	if (c->killed == (server ? SERVER : CLIENT)) {
		if (e.child)
			kill(e.child, SIGKILL);
		raise(SIGKILL);
	}
	if (c->killed == NOBODY) {
		if (c->moment == FULL || c->moment == HALF) {
			// The client has ended, or there is no room: the server reads first.
			if (server) {
				if (c->moment == FULL) {
					unsigned char b[STEP];
					for (ssize_t r; e.got < theirs; e.got += r) {
						r = recv(e.fd, b, theirs - e.got < sizeof b ? theirs - e.got : sizeof b, 0);
						CHECK(r > 0);
						pat_check(b, r, e.got, !e.key);
					}
				} else {
					EQ(drain(&e), 0);
					EQ(e.got, theirs);
				}
			}
		} else {
			give(&e, PIECE);
		}
		EQ(shutdown(e.fd, SHUT_WR) && errno != ENOTCONN, 0);
		say(2 + server, e.sent);
		theirs = hear(server);
		if (!(server && c->moment == HALF))
			EQ(drain(&e), 0);
		EQ(e.got, theirs);
		say(2 + server, 4); // both have come to the end before either closes
		EQ(hear(server), 4);
	} else {
		int end = drain(&e);
		// What the one that is killed had not read makes the end a reset, after which bytes may be lost; a stream that has
		// ended before has its end.
		int reset = e.sent && !(c->moment == HALF && server);
		if (end != (reset ? ECONNRESET : 0))
			die("moment %d, sides %d, way %d, shared %d, killed %d: the end of side %d is errno %d after %llu of %llu bytes", c->moment,
				c->sides, c->way, c->shared, c->killed, server, end, (unsigned long long)e.got, (unsigned long long)theirs);
		if (!reset)
			EQ(e.got, theirs);
		say(2 + server, e.got);
	}
	close(e.fd);
	if (e.child) {
		kill(e.child, SIGKILL);
		reap_killed(e.child);
	}
	_exit(0);
}
static void run(const struct cell *c, int l, int port)
{
	pid_t kid[2];
	for (int server = 0; server < 2; server++) {
		kid[server] = fork_child();
		if (!kid[server])
			side(c, server, l, port);
	}
	uint64_t sent[2] = { hear(2), hear(3) };
	say(0, 2);
	say(1, 2);
	EQ(hear(2) + hear(3), 6);
	int killed = c->killed == NOBODY ? -1 : c->killed == SERVER;
	if (killed >= 0) {
		say(killed, sent[!killed]);
		reap_killed(kid[killed]);
		say(!killed, sent[killed]);
		CHECK(hear(2 + !killed) <= sent[killed]);
		reap(kid[!killed]);
		return;
	}
	say(0, sent[1]);
	say(1, sent[0]);
	for (int server = 0; server < 2; server++)
		sent[server] = hear(2 + server);
	say(0, sent[1]);
	say(1, sent[0]);
	EQ(hear(2) + hear(3), 8);
	say(0, 4);
	say(1, 4);
	reap(kid[0]);
	reap(kid[1]);
}
int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	for (int i = 0; i < 4; i++)
		EQ(pipe(pipes[i]), 0);
	struct cell c;
	for (c.moment = 0; c.moment < MOMENTS; c.moment++)
		for (c.sides = 1; c.sides < 4; c.sides++)
			for (c.way = 0; c.way < 2; c.way++)
				for (c.shared = 0; c.shared < 2; c.shared++)
					for (c.killed = 0; c.killed < WHO; c.killed++)
						run(&c, l, port);
	return t_ok("switch_matrix");
}
