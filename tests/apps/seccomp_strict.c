// A process confines itself to its descriptors and to read, write and exit (seccomp(2)) while it serves a connection;
// its parent, which has the connection as well, goes on with it afterwards.
#include "t.h"
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
enum { MSGS = 200, LEN = 3000 };
static void serve(int s, int n)
{
	static char b[LEN];
	for (int i = 0; i < n; i++) {
		for (size_t k = 0; k < LEN;) {
			ssize_t r = read(s, b + k, LEN - k);
			if (r <= 0)
				syscall(SYS_exit, 2);
			k += r;
		}
		for (size_t k = 0; k < LEN;) {
			ssize_t r = write(s, b + k, LEN - k);
			if (r <= 0)
				syscall(SYS_exit, 3);
			k += r;
		}
	}
}
static void talk(int c, int from, int n)
{
	unsigned char b[LEN];
	for (int i = from; i < from + n; i++) {
		pat_fill(b, LEN, (uint64_t)i * LEN, 5);
		send_all(c, b, LEN);
		memset(b, 0, LEN);
		recv_all(c, b, LEN);
		pat_check(b, LEN, (uint64_t)i * LEN, 5);
	}
}
int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	pid_t client = fork_child();
	if (!client) {
		close(l);
		int c = connect_to(port), idle = connect_to(port);
		talk(c, 0, 3 * MSGS);
		shutdown(c, SHUT_WR);
		char b;
		EQ(recv(c, &b, 1, 0), 0);
		EQ(recv(idle, &b, 1, 0), 0);
		_exit(0);
	}
	int s = accept(l, NULL, NULL), other = accept(l, NULL, NULL);
	CHECK(s >= 0 && other >= 0);
	expect_shm(s);
	serve(s, MSGS);
	pid_t kid = fork_child();
	if (!kid) {
		struct rlimit none = { 0, 0 };
		EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
		EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT), 0);
		serve(s, MSGS);
		syscall(SYS_exit, 0);
	}
	reap(kid);
	serve(s, MSGS);
	char b;
	EQ(recv(s, &b, 1, 0), 0);
	close(s);
	close(other);
	reap(client);
	// A process of its own accord, from the first byte.
	kid = fork_child();
	if (!kid) {
		close(l);
		int c = socket(AF_INET, SOCK_STREAM, 0);
		struct sockaddr_in a = addr4(port);
		EQ(connect(c, (struct sockaddr *)&a, sizeof a), 0);
		alarm(0);
		EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT), 0);
		serve(c, MSGS);
		syscall(SYS_exit, 0);
	}
	s = accept(l, NULL, NULL);
	talk(s, 0, MSGS);
	EQ(recv(s, &b, 1, 0), 0);
	reap(kid);
	return t_ok("seccomp_strict");
}
