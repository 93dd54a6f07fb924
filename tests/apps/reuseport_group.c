// In a group of listeners with SO_REUSEPORT each gets its share of the connections, a member that closes or dies does
// not affect the others, and a member that joins is found; two of them may be in one process, and only the same user
// may join.
#include "t.h"
enum { MEMBERS = 4, ROUND = 400 };
static int port;
static int member(uint32_t ip)
{
	int one = 1, s = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in a = addr4(port);
	a.sin_addr.s_addr = htonl(ip);
	EQ(setsockopt(s, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one), 0);
	if (bind(s, (struct sockaddr *)&a, sizeof a)) {
		EQ(errno, EADDRINUSE);
		close(s);
		return -1;
	}
	EQ(listen(s, 1000), 0);
	return s;
}
static void *serve(void *arg)
{
	int l = *(int *)arg, fd;
	char name = ((int *)arg)[1], x;
	while ((fd = accept(l, NULL, NULL)) >= 0) {
		if (recv(fd, &x, 1, 0) == 1)
			send_all(fd, &name, 1);
		close(fd);
	}
	return NULL;
}
// A process with as many members; it ends one of them on request, and the last one with itself.
static pid_t process(char name, int members, struct sig *s)
{
	struct sig theirs;
	sigpair(s, &theirs);
	pid_t k = fork_child();
	if (k)
		return k;
	int arg[2][2];
	pthread_t t[2];
	for (int i = 0; i < members; i++) {
		arg[i][0] = member(INADDR_LOOPBACK);
		arg[i][1] = name + i;
		EQ(pthread_create(&t[i], NULL, serve, arg[i]), 0);
	}
	tell(theirs);
	for (int i = 0; i < members; i++) {
		await(theirs);
		shutdown(arg[i][0], SHUT_RDWR);
		pthread_join(t[i], NULL);
		close(arg[i][0]);
		tell(theirs);
	}
	_exit(0);
}
static int used[256];
static int once(void)
{
	char c;
	int fd = connect_to(port);
	send_all(fd, "?", 1);
	recv_all(fd, &c, 1);
	expect_shm(fd);
	close(fd);
	return used[(unsigned char)c]++, c;
}
static void round_of(const char *expected, int least)
{
	memset(used, 0, sizeof used);
	for (int i = 0; i < ROUND; i++) {
		char c;
		int fd = connect_to(port);
		send_all(fd, "?", 1);
		recv_all(fd, &c, 1);
		close(fd);
		CHECK(strchr(expected, c));
		used[(unsigned char)c]++;
	}
	for (const char *p = expected; *p; p++)
		if (used[(unsigned char)*p] < least)
			die("%d of %d connections went to %c", used[(unsigned char)*p], ROUND, *p);
}
// Another user can bind the port neither with NetACC nor without.
static void other_user(void)
{
	if (getuid())
		return;
	pid_t k = fork_child();
	if (!k) {
		CHECK(!setuid(65534));
		EQ(member(INADDR_LOOPBACK), -1);
		_exit(0);
	}
	reap(k);
}
int main(void)
{
	t_init();
	// Holds the port, so that the members can come and go; never listens.
	struct sockaddr_in a = addr4(0);
	int one = 1, holder = socket(AF_INET, SOCK_STREAM, 0);
	EQ(setsockopt(holder, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one), 0);
	EQ(bind(holder, (struct sockaddr *)&a, sizeof a), 0);
	port = port_of(holder);
	struct sig s[MEMBERS];
	pid_t k[MEMBERS];
	k[0] = process('a', 2, &s[0]);
	k[1] = process('c', 1, &s[1]);
	k[2] = process('d', 1, &s[2]);
	for (int i = 0; i < 3; i++)
		await(s[i]);
	once();
	round_of("abcd", ROUND / 4 / 2);
	other_user();
	// One of two members of a process ends, and the other stays.
	tell(s[0]);
	await(s[0]);
	round_of("bcd", ROUND / 3 / 2);
	// A process of the group is killed.
	kill(k[1], SIGKILL);
	reap_killed(k[1]);
	round_of("bd", ROUND / 2 / 2);
	// A process joins the group, and connections reach it.
	k[3] = process('e', 1, &s[3]);
	await(s[3]);
	while (once() != 'e')
		;
	round_of("bde", 1);
	round_of("bde", ROUND / 3 / 2);
	// A more specific address has its own group.
	int wide = member(INADDR_ANY);
	round_of("bde", ROUND / 3 / 2);
	close(wide);
	for (int i = 0; i < MEMBERS; i++)
		if (i != 1) {
			tell(s[i]);
			await(s[i]);
			reap(k[i]);
		}
	struct sockaddr_in to = addr4(port);
	FAILS(connect(socket(AF_INET, SOCK_STREAM, 0), (struct sockaddr *)&to, sizeof to), ECONNREFUSED);
	return t_ok("reuseport_group");
}
