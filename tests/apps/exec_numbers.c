// A number in a program's arguments may be the descriptor of a connection that the program should get; a number that is
// part of a path, a version, an address or the program's own name is not.
#include "t.h"
#include <spawn.h>
static void run(char *name, char *argument)
{
	// Nothing in its environment: a number there counts too.
	char *none[] = { NULL };
	pid_t k;
	EQ(posix_spawn(&k, "/bin/true", NULL, NULL, (char *[]){ name, argument, NULL }, none), 0);
	reap(k);
}
static void echoes(int p[2])
{
	char b[2];
	send_all(p[0], "ab", 2);
	recv_all(p[1], b, 2);
	send_all(p[1], b, 2);
	recv_all(p[0], b, 2);
}
int main(void)
{
	t_init();
	int p[2], q[2];
	pair(p);
	pair(q);
	char t[100];
	static const char *parts[] = { "/srv/%d/www", "/srv/%d", "%d/www", "1.%d", "%d.1", "file:///%d/a" };
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		snprintf(t, sizeof t, parts[i], p[0]);
		run("true", t);
		snprintf(t, sizeof t, parts[i], p[1]);
		run("true", t);
	}
	snprintf(t, sizeof t, "true%d", p[0]);
	run(t, "x");
	expect_shm(p[0]);
	expect_shm(p[1]);
	echoes(p);
	static const char *names[] = { "%d", "--fd=%d", "/dev/fd/%d", "cat <&%d", "-f%d", "FD:%d,x" };
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		pair(p);
		snprintf(t, sizeof t, names[i], p[0]);
		run("true", t);
		expect_on(p[0], "TCP", "exec");
		echoes(p);
		close(p[0]);
		close(p[1]);
	}
	expect_shm(q[0]);
	return t_ok("exec_numbers");
}
