// The child of a fork closes a connection, and in most rounds gives up rights as servers with privilege separation do. From
// then on its memory has nothing of what the client sends to its parent, and the connection that it has kept goes on.
#include "t.h"
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
enum way { CLOSES, CLOSES_ALL, SETUID, SETREUID, SETRESUID, RAW_SETUID, CHROOT, FILTER, CAPABILITIES, USER_SPACE, WAYS };
static const char *NAMES[] = { "closes", "closes all", "setuid", "setreuid", "setresuid", "syscall", "chroot", "filter",
			       "capabilities", "user namespace" };
enum { SIZE = 20000, STRANGER = 12345 };
static void secret(char *b)
{
	// Made here, so that the text of the program is not found.
	static const char half[] = "what-is-meant-for-the-par";
	for (int i = 0; i < SIZE; i++)
		b[i] = i % 30 < 25 ? half[i % 30] : "ent-|"[i % 30 - 25];
}
static int found(void)
{
	char want[SIZE], line[600];
	int n = 0;
	secret(want);
	FILE *f = fopen("/proc/self/maps", "r");
	CHECK(f);
	while (fgets(line, sizeof line, f)) {
		unsigned long from, to;
		char mode[8];
		if (sscanf(line, "%lx-%lx %7s", &from, &to, mode) == 3 && mode[0] == 'r' && mode[3] == 's')
			n += memmem((void *)from, to - from, want, 100) != NULL;
	}
	fclose(f);
	return n;
}
static void filter(void)
{
	struct sock_filter all = { BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW };
	struct sock_fprog prog = { 1, &all };
	CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog));
}
static void give_up(enum way way)
{
	struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct none[2] = { { 0 } };
	switch (way) {
	case SETUID:
		CHECK(!setuid(STRANGER));
		break;
	case SETREUID:
		CHECK(!setreuid(STRANGER, STRANGER));
		break;
	case SETRESUID:
		// There is a way back from the first of them.
		CHECK(!setresuid(STRANGER, STRANGER, 0) && !setresuid(STRANGER, STRANGER, STRANGER));
		break;
	case RAW_SETUID:
		CHECK(!syscall(SYS_setuid, STRANGER));
		break;
	case CHROOT:
		CHECK(!chroot("/"));
		break;
	case FILTER:
		filter();
		break;
	case CAPABILITIES:
		CHECK(!syscall(SYS_capset, &head, none));
		break;
	case USER_SPACE:
		CHECK(!unshare(CLONE_NEWUSER));
		break;
	default:
		break;
	}
}
static void child(enum way way, int l, const int c[2], struct sig s)
{
	char b[6];
	close(l);
	close(c[1]);
	if (way == CLOSES_ALL)
		close(c[0]);
	give_up(way);
	tell(s);
	await(s);
	EQ(found(), 0);
	if (way != CLOSES_ALL) {
		recv_all(c[0], b, 6);
		CHECK(!memcmp(b, "to the", 6));
		send_all(c[0], "from the child", 14);
	}
	_exit(0);
}
static void client(enum way way, int port, struct sig s)
{
	char b[SIZE];
	int c[2] = { connect_to(port), connect_to(port) }, late = -1;
	for (int i = 0; i < 2; i++)
		send_all(c[i], &"ab"[i], 1);
	for (int i = 0; i < 2; i++)
		recv_all(c[i], b, 1);
	await(s);
	secret(b);
	send_all(c[1], b, 120);
	send_all(c[1], b, SIZE);
	// A connection of which the child knows nothing.
	if (way != CLOSES) {
		late = connect_to(port);
		send_all(late, b, SIZE);
	}
	tell(s);
	await(s);
	ssize_t n = send(c[0], "to the", 6, MSG_NOSIGNAL);
	n = n < 0 ? n : recv(c[0], b, 14, MSG_WAITALL);
	CHECK(n <= 0 || (n == 14 && !memcmp(b, "from the child", 14)));
	recv_all(c[1], b, 5);
	close(late);
	_exit(n == 14 ? 14 : 0);
}
static void once(enum way way)
{
	int port, l = listen_on(&port), c[2] = { -1, -1 }, st;
	struct sig to_client, its, to_child, childs;
	sigpair(&to_client, &its);
	sigpair(&to_child, &childs);
	pid_t other = fork_child();
	if (!other) {
		close(l);
		client(way, port, its);
	}
	for (int i = 0; i < 2; i++) {
		char b;
		int s = accept(l, NULL, NULL);
		recv_all(s, &b, 1);
		c[b - 'a'] = s;
	}
	CHECK(c[0] >= 0 && c[1] >= 0);
	send_all(c[0], "a", 1);
	send_all(c[1], "b", 1);
	pid_t p = fork_child();
	if (!p)
		child(way, l, c, childs);
	close(c[0]);
	await(to_child);
	tell(to_client);
	await(to_client);
	tell(to_child);
	tell(to_client);
	char got[SIZE], want[SIZE];
	secret(want);
	recv_all(c[1], got, 120);
	CHECK(!memcmp(got, want, 120));
	recv_all(c[1], got, SIZE);
	CHECK(!memcmp(got, want, SIZE));
	send_all(c[1], "thank", 5);
	reap(p);
	CHECK(waitpid(other, &st, 0) == other && WIFEXITED(st));
	EQ(WEXITSTATUS(st), way == CLOSES_ALL ? 0 : 14);
	close(c[1]);
	close(l);
}
int main(void)
{
	t_init();
	for (enum way way = 0; way < WAYS; way++) {
		if (geteuid() && way >= SETUID && way != FILTER)
			continue;
		fprintf(stderr, "%s\n", NAMES[way]);
		once(way);
	}
	return t_ok("fork_rights");
}
