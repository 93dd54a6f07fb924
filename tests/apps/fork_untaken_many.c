// A program with many connections that the server has not accepted yet forks: each of them goes on in the child, with
// what either process has written.
#include "t.h"
enum { MANY = 1100 };
static int fd[MANY];
static void want_files(void)
{
	struct rlimit r;
	EQ(getrlimit(RLIMIT_NOFILE, &r), 0);
	r.rlim_cur = r.rlim_max;
	EQ(setrlimit(RLIMIT_NOFILE, &r), 0);
	if (r.rlim_cur < 3 * MANY)
		t_skip("fork_untaken_many", "the limit of open files is too low");
}
int main(void)
{
	t_init();
	want_files();
	int port, go[2], told[2];
	EQ(pipe(go), 0);
	EQ(pipe(told), 0);
	pid_t client = fork_child();
	if (!client) {
		EQ(read(told[0], &port, sizeof port), sizeof port);
		for (int i = 0; i < MANY; i++) {
			fd[i] = connect_to(port);
			send_all(fd[i], &i, sizeof i);
		}
		pid_t kid = fork_child();
		if (!kid) {
			for (int i = 0; i < MANY; i++) {
				send_all(fd[i], "child", 5);
				EQ(shutdown(fd[i], SHUT_WR), 0);
			}
			EQ(write(go[1], "x", 1), 1);
			for (int i = 0, n; i < MANY; i++) {
				recv_all(fd[i], &n, sizeof n);
				EQ(n, i);
				EQ(recv(fd[i], &n, 1, 0), 0);
			}
			_exit(0);
		}
		for (int i = 0; i < MANY; i++)
			close(fd[i]);
		reap(kid);
		_exit(0);
	}
	int l = listen_on(&port);
	EQ(listen(l, MANY), 0);
	EQ(write(told[1], &port, sizeof port), sizeof port);
	char c;
	EQ(read(go[0], &c, 1), 1);
	for (int i = 0; i < MANY; i++) {
		int n, a = accept(l, NULL, NULL);
		char said[5];
		CHECK(a >= 0);
		recv_all(a, &n, sizeof n);
		EQ(n, i);
		recv_all(a, said, sizeof said);
		CHECK(!memcmp(said, "child", 5));
		EQ(recv(a, said, 1, 0), 0);
		send_all(a, &n, sizeof n);
		close(a);
	}
	reap(client);
	return t_ok("fork_untaken_many");
}
