// The server forks while the client has no descriptor left. Whatever the client misses of that, it sees the end of the
// connection when the last process of the server ends without closing it.
#include "t.h"
enum { LIMIT = 200, FEW = 3, MANY = 8 };
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
// The parent leaves the connections to a child, which answers one byte for each and is killed.
static void server(int l, int conns, struct sig client)
{
	int fd[MANY];
	char c;
	for (int i = 0; i < conns; i++)
		CHECK((fd[i] = accept(l, NULL, NULL)) >= 0);
	for (int i = 0; i < conns; i++)
		recv_all(fd[i], &c, 1);
	tell(client);
	await(client); // it has no descriptor left
	pid_t kid = fork_child();
	if (!kid) {
		for (int i = 0; i < conns; i++)
			send_all(fd[i], "k", 1);
		for (;;)
			pause();
	}
	for (int i = 0; i < conns; i++)
		close(fd[i]);
	tell(client);
	await(client); // it has the child's bytes
	kill(kid, SIGKILL);
	reap_killed(kid);
	tell(client);
	await(client); // it has seen the ends
	_exit(0);
}
int main(void)
{
	t_init();
	struct rlimit r = { LIMIT, LIMIT };
	EQ(setrlimit(RLIMIT_NOFILE, &r), 0);
	for (int round = 0; round < 3; round++) {
		int early = round > 0, conns = round < 2 ? FEW : MANY; // gets its descriptors back before or after the end
		int port, l = listen_on(&port), fd[MANY];
		struct sig ours, theirs;
		sigpair(&ours, &theirs);
		pid_t kid = fork_child();
		if (!kid)
			server(l, conns, theirs);
		close(l);
		for (int i = 0; i < conns; i++) {
			fd[i] = connect_to(port);
			send_all(fd[i], "a", 1);
		}
		await(ours);
		expect_shm(fd[0]);
		take_all();
		tell(ours);
		await(ours);
		char c;
		for (int i = 0; i < conns; i++) {
			recv_all(fd[i], &c, 1);
			EQ(c, 'k');
		}
		if (early)
			give_back();
		tell(ours);
		await(ours);
		for (int i = 0; i < conns; i++) {
			ssize_t n = recv(fd[i], &c, 1, 0);
			CHECK(n == 0 || (n < 0 && errno == ECONNRESET));
		}
		give_back();
		tell(ours);
		reap(kid);
		for (int i = 0; i < conns; i++)
			close(fd[i]);
	}
	return t_ok("fork_no_number");
}
