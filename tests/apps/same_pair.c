// Two processes whose sockets share a local address by SO_REUSEADDR: a second connection with the pair of addresses of a
// living one is refused (EADDRNOTAVAIL), as long as any process has that one, and then made.
#include "t.h"
static int port;
static int bound(const struct sockaddr_in *me)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	EQ(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int)), 0);
	EQ(bind(fd, (void *)me, sizeof *me), 0);
	return fd;
}
static int connected(int fd)
{
	struct sockaddr_in a = addr4(port);
	return connect(fd, (void *)&a, sizeof a);
}
// Whether a socket can be bound there: by TCP a client's port may also be that of another test's connection.
static int is_free(const struct sockaddr_in *me)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	EQ(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int)), 0);
	int r = bind(fd, (void *)me, sizeof *me);
	close(fd);
	return !r;
}
enum how { ONE_ADDRESS, ALL_ADDRESSES, UNBOUND };
// A connection whose local address others may share, which is then in `me`.
static int first(enum how how, struct sockaddr_in *me, int l)
{
	for (int tries = 0; tries < 2000; tries++) {
		int a = how == UNBOUND ? socket(AF_INET, SOCK_STREAM, 0) : bound(me);
		EQ(setsockopt(a, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int)), 0);
		EQ(connected(a), 0);
		me->sin_port = htons(port_of(a));
		if (how == UNBOUND)
			me->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		if (is_free(me))
			return a;
		close(a), close(accept(l, NULL, NULL));
		me->sin_port = 0;
	}
	die("no port");
}
static void with(enum how how)
{
	int l = listen_on(&port), other, l2 = listen_on(&other);
	struct sockaddr_in me = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(how == ONE_ADDRESS ? INADDR_LOOPBACK : INADDR_ANY) };
	struct sig to_kid, its, to_heir, heirs;
	sigpair(&to_kid, &its);
	sigpair(&to_heir, &heirs);
	// accepted before the fork, at which a connect that still waits goes by TCP
	int a = first(how, &me, l), s = accept(l, NULL, NULL);
	CHECK(s >= 0);
	pid_t kid = fork_child();
	if (!kid) {
		close(a), close(s), close(l), close(l2);
		await(its); // the pair is taken
		int b = bound(&me);
		FAILS(connected(b), EADDRNOTAVAIL);
		int mine = port;
		port = other; // another server is another pair
		EQ(connected(b), 0);
		abortive(b), close(b);
		tell(its);
		port = mine;
		await(its); // the first process has closed it, another one has it
		b = bound(&me);
		FAILS(connected(b), EADDRNOTAVAIL);
		tell(its);
		await(its); // it has ended
		EQ(connected(b), 0);
		send_all(b, "b", 1);
		_exit(0);
	}
	char c;
	expect_shm(a);
	tell(to_kid), await(to_kid);
	close(accept(l2, NULL, NULL));
	pid_t heir = fork_child();
	if (!heir) {
		close(l), close(s);
		await(heirs);
		close(a);
		_exit(0);
	}
	close(a);
	tell(to_kid), await(to_kid);
	tell(to_heir);
	reap(heir);
	EQ(recv(s, &c, 1, 0), 0);
	abortive(s), close(s); // no TIME_WAIT keeps the pair
	tell(to_kid);
	s = accept(l, NULL, NULL);
	recv_all(s, &c, 1);
	EQ(c, 'b');
	reap(kid);
	close(s), close(l), close(l2);
}
int main(void)
{
	t_init();
	with(ONE_ADDRESS);
	with(ALL_ADDRESSES);
	with(UNBOUND);
	return t_ok("same_pair");
}
