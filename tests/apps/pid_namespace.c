// Children in PID namespaces of their own, all with process number 1, use one connection at once: every byte that they
// send arrives, and every byte that is sent to them reaches one of them.
#include "t.h"
#include <sched.h>
enum { WRITERS = 3, BYTES = 3 << 20, STEP = 700 };
static void write_all(int fd, char letter)
{
	char b[STEP];
	memset(b, letter, sizeof b);
	for (size_t left = BYTES; left;) {
		size_t n = left < STEP ? left : STEP;
		send_all(fd, b, n);
		left -= n;
	}
	// One word for each of us, whichever process gets it first.
	CHECK(recv(fd, b, 1, 0) == 1 && b[0] == 'w');
}
static void in_own_namespace(int fd, char letter)
{
	if (unshare(CLONE_NEWPID))
		die("unshare");
	pid_t k = fork_child();
	if (!k) {
		EQ(getpid(), 1);
		write_all(fd, letter);
		_exit(0);
	}
	reap(k);
	_exit(0);
}
int main(void)
{
	t_init();
	pid_t probe = fork_child();
	if (!probe)
		_exit(unshare(CLONE_NEWPID) ? 7 : 0);
	int st;
	EQ(waitpid(probe, &st, 0), probe);
	if (st)
		t_skip("pid_namespace", "may not make a PID namespace");
	int port, l = listen_on(&port);
	pid_t server = fork_child();
	if (!server) {
		static char b[1 << 16];
		static size_t count[256];
		int s = accept(l, NULL, NULL);
		CHECK(s >= 0);
		for (size_t left = (size_t)WRITERS * BYTES; left;) {
			ssize_t n = recv(s, b, sizeof b, 0);
			CHECK(n > 0);
			for (ssize_t i = 0; i < n; i++)
				count[(unsigned char)b[i]]++;
			left -= n;
		}
		for (int i = 0; i < WRITERS; i++)
			EQ(count['a' + i], BYTES);
		send_all(s, "wwww", WRITERS);
		EQ(recv(s, b, 1, 0), 0);
		_exit(0);
	}
	close(l);
	int fd = connect_to(port);
	pid_t k[WRITERS];
	for (int i = 0; i < WRITERS; i++) {
		k[i] = fork_child();
		if (!k[i])
			in_own_namespace(fd, 'a' + i);
	}
	close(fd);
	for (int i = 0; i < WRITERS; i++)
		reap(k[i]);
	reap(server);
	return t_ok("pid_namespace");
}
