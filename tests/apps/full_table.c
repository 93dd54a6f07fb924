// A server has just enough descriptors for all of its connections, and their clients fork: no connection may need a
// second descriptor.
#include "t.h"
enum { CONNECTIONS = 100, LIMIT = 150, FORKS = 4 };
static void server(int l, struct sig s)
{
	struct rlimit r = { LIMIT, LIMIT };
	EQ(setrlimit(RLIMIT_NOFILE, &r), 0);
	int fd[CONNECTIONS];
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < CONNECTIONS; i++) {
			char c;
			fd[i] = accept(l, NULL, NULL);
			CHECK(fd[i] >= 0);
			recv_all(fd[i], &c, 1);
			send_all(fd[i], &c, 1);
			tell(s);
		}
		await(s);
		for (int i = 0; i < CONNECTIONS; i++) {
			char b[3];
			recv_all(fd[i], b, 3);
			EQ(b[0], i);
			EQ(b[2], i);
			send_all(fd[i], b, 2);
			close(fd[i]);
		}
		tell(s);
		await(s);
	}
	// All are used up: that is an error as ever, and one that passes.
	for (int n = 0;; n++) {
		CHECK(n < LIMIT);
		if (dup(l) < 0) {
			EQ(errno, EMFILE);
			break;
		}
	}
	tell(s);
	FAILS(accept(l, NULL, NULL), EMFILE);
	close(l + 1);
	int c = accept(l, NULL, NULL);
	CHECK(c >= 0);
	send_all(c, "!", 1);
	_exit(0);
}
int main(void)
{
	t_init();
	int port, l = listen_on(&port), fd[CONNECTIONS];
	struct sig a, b;
	sigpair(&a, &b);
	pid_t w = fork_child(), children[FORKS];
	if (!w)
		server(l, b);
	close(l);
	for (int round = 0; round < 2; round++) {
		for (int i = 0, forks = 0; i < CONNECTIONS; i++) {
			char c = i;
			fd[i] = connect_to(port);
			send_all(fd[i], &c, 1);
			recv_all(fd[i], &c, 1);
			EQ(c, i);
			await(a);
			if (i % (CONNECTIONS / FORKS) == 5) {
				children[forks] = fork_child();
				if (!children[forks++])
					for (;;)
						pause();
			}
		}
		for (int i = 0; i < CONNECTIONS; i++)
			send_all(fd[i], (char[]){ i, 1, i }, 3);
		tell(a);
		await(a);
		for (int i = 0; i < CONNECTIONS; i++) {
			char c[2];
			recv_all(fd[i], c, 2);
			EQ(c[0], i);
			EQ(recv(fd[i], c, 1, 0), 0);
			close(fd[i]);
		}
		for (int i = 0; i < FORKS; i++) {
			kill(children[i], SIGKILL);
			reap_killed(children[i]);
		}
		tell(a);
	}
	await(a);
	char c;
	int late = connect_to(port);
	recv_all(late, &c, 1);
	EQ(c, '!');
	reap(w);
	return t_ok("full_table");
}
