// Of two programs of different users one needs a kernel socket in the middle of the stream: it executes another program
// with it, passes it on, ends by a reset or is killed. The other one sees what it would see with TCP.
#include "t.h"
#include <grp.h>
enum { BULK = 400000, STRANGER = 12345, LARGE = 48 << 20 };
enum act { EXEC, FORK_EXEC, KEPT, BOTH, PASSED, RESETS, KILLED, PEER_RESETS, PEER_KILLED, ACTS };
static char self[500];
static unsigned char b[BULK], g[BULK];
static void become(int stranger)
{
	if (!stranger)
		return;
	EQ(setgroups(0, NULL), 0);
	EQ(setgid(STRANGER), 0);
	EQ(setuid(STRANGER), 0);
}
// Processes of this test's group that stand between a ring and a socket, and the most pages that one of them has.
static long pages;
static int relays(void)
{
	DIR *d = opendir("/proc");
	CHECK(d);
	int n = 0;
	pages = 0;
	for (struct dirent *e; (e = readdir(d));) {
		char path[300], s[300];
		snprintf(path, sizeof path, "/proc/%s/stat", e->d_name);
		int f = atoi(e->d_name) > 0 ? open(path, O_RDONLY) : -1;
		ssize_t k = f < 0 ? 0 : read(f, s, sizeof s - 1);
		if (f >= 0)
			close(f);
		s[k > 0 ? k : 0] = 0;
		char *end = strrchr(s, ')');
		int group;
		char state;
		long has = 0;
		if (!end || !strstr(s, "(netacc-relay)") || sscanf(end + 2, "%c %*d %d", &state, &group) != 2 ||
		    group != getpgrp() || state == 'Z') // one that has ended is init's to reap
			continue;
		n++;
		snprintf(path, sizeof path, "/proc/%s/statm", e->d_name);
		FILE *m = fopen(path, "r");
		if (m && fscanf(m, "%*d %ld", &has) == 1 && has > pages)
			pages = has;
		if (m)
			fclose(m);
	}
	closedir(d);
	return n;
}
static void expect_relay(void)
{
	const char *e = getenv("NETACC_EXPECT");
	if (!e || strcmp(e, "shm"))
		return;
	for (int i = 0; !relays(); i++) { // the process is there before it has its name
		CHECK(i < 20000);
		usleep(1000);
	}
	for (int i = 0; pages > LARGE / 4096 / 2; i++) { // they give back what the program had
		CHECK(i < 20000);
		usleep(1000);
		relays();
	}
}
static void serve(int in, int out) // returns what it reads, inverted
{
	static unsigned char s[40000];
	ssize_t r;
	while ((r = read(in, s, sizeof s)) > 0) {
		for (int i = 0; i < r; i++)
			s[i] = ~s[i];
		for (ssize_t k = 0; k < r;) {
			ssize_t w = write(out, s + k, r - k);
			CHECK(w > 0);
			k += w;
		}
	}
	EQ(r, 0);
}
static void *sender(void *x)
{
	int fd = *(int *)x;
	send_all(fd, b + BULK / 4, BULK - BULK / 4);
	EQ(shutdown(fd, SHUT_WR), 0);
	return NULL;
}
static void streams(int fd, unsigned k) // both ways at once, with the contents compared
{
	pat_fill(b, BULK, 0, k);
	send_all(fd, b, BULK / 4); // some of it is there before the other program is
	pthread_t t;
	EQ(pthread_create(&t, NULL, sender, &fd), 0);
	recv_all(fd, g, BULK);
	for (int i = 0; i < BULK; i++)
		if (g[i] != (unsigned char)~b[i])
			die("wrong byte at %d", i);
	pthread_join(t, NULL);
	EQ(recv(fd, g, 1, 0), 0);
}
__attribute__((noreturn)) static void run(int fd, char *what)
{
	char *av[] = { self, what, NULL };
	EQ(dup2(fd, 0), 0);
	EQ(dup2(fd, 1), 1);
	if (fd > 1)
		close(fd);
	execv(self, av);
	_exit(9);
}
static void peer(int fd, enum act act)
{
	char c = 'x';
	switch (act) {
	case KEPT:
		recv_all(fd, g, 11);
		CHECK(!memcmp(g, "childparent", 11));
		send_all(fd, &c, 1);
		EQ(recv(fd, &c, 1, 0), 0);
		break;
	case RESETS:
		send_all(fd, &c, 1);
		FAILS(recv(fd, &c, 1, 0), ECONNRESET);
		break;
	case KILLED:
		send_all(fd, &c, 1);
		EQ(recv(fd, &c, 1, 0), 0);
		break;
	case PEER_RESETS:
		send_all(fd, &c, 1);
		recv_all(fd, &c, 1);
		abortive(fd);
		break;
	case PEER_KILLED:
		send_all(fd, &c, 1);
		recv_all(fd, &c, 1);
		raise(SIGKILL);
		break;
	case BOTH:
		run(fd, "streams");
	default:
		streams(fd, act);
	}
	close(fd);
}
static void worker(int u, enum act act) // to whom the connection is passed
{
	char c;
	int fd = take_fd(u);
	expect_relay();
	if (act == PASSED) {
		serve(fd, fd);
		close(fd);
		return;
	}
	recv_all(fd, &c, 1);
	if (act == RESETS)
		abortive(fd);
	else if (act == KILLED)
		raise(SIGKILL);
	else {
		send_all(fd, &c, 1);
		if (act == PEER_RESETS)
			FAILS(recv(fd, &c, 1, 0), ECONNRESET);
		else
			EQ(recv(fd, &c, 1, 0), 0);
	}
	close(fd);
}
static void departs(int fd, enum act act, int u, pid_t w)
{
	char c;
	pid_t kid;
	switch (act) {
	case EXEC:
	case BOTH:
		run(fd, "served");
	case FORK_EXEC:
	case KEPT:
		kid = fork_child();
		if (!kid)
			run(fd, act == KEPT ? "writes" : "served");
		if (act == FORK_EXEC)
			close(fd);
		reap(kid);
		if (act == KEPT) { // the program has written and closed its copy, ours is as good as before
			send_all(fd, "parent", 6);
			recv_all(fd, &c, 1);
			close(fd);
		}
		break;
	default:
		if (act == PASSED) { // a program of some size
			static char *large;
			large = malloc(LARGE);
			CHECK(large);
			memset(large, 1, LARGE);
		}
		pass_fd(u, fd);
		close(fd);
		if (act == KILLED)
			reap_killed(w);
		else
			reap(w);
	}
}
// One side departs, the other one is a stranger to it.
static void one(int server_departs, int server_is_stranger, enum act act)
{
	int p[2];
	EQ(pipe(p), 0);
	pid_t kids[2];
	for (int client = 0; client < 2; client++) {
		kids[client] = fork_child();
		if (kids[client])
			continue;
		become(client != server_is_stranger);
		int us = client != server_departs, u[2] = { -1, -1 }, port, fd, l = -1;
		pid_t w = 0;
		if (us && act >= PASSED) { // before there is a connection, so that it has no other copy
			EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, u), 0);
			w = fork_child();
			if (!w) {
				close(u[0]);
				worker(u[1], act);
				_exit(0);
			}
			close(u[1]);
		}
		if (client) {
			EQ(read(p[0], &port, sizeof port), sizeof port);
			fd = connect_to(port);
		} else {
			l = listen_on(&port);
			fcntl(l, F_SETFD, FD_CLOEXEC);
			EQ(write(p[1], &port, sizeof port), sizeof port);
			fd = accept(l, NULL, NULL);
			CHECK(fd >= 0);
		}
		if (us)
			departs(fd, act, u[0], w);
		else
			peer(fd, act);
		_exit(0);
	}
	close(p[0]);
	close(p[1]);
	for (int i = 0; i < 2; i++)
		if (act == PEER_KILLED && i == server_departs)
			reap_killed(kids[i]);
		else
			reap(kids[i]);
}
int main(int argc, char **argv)
{
	if (argc > 1) {
		signal(SIGALRM, SIG_DFL);
		alarm(60 * patience());
		if (!strcmp(argv[1], "writes"))
			return write(1, "child", 5) != 5;
		expect_relay();
		if (!strcmp(argv[1], "streams"))
			streams(0, BOTH);
		else
			serve(0, 1);
		return 0;
	}
	t_init();
	CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
	if (getuid())
		t_skip("strangers_depart", "only root can be two users");
	pid_t kid = fork_child();
	if (!kid) {
		become(1);
		_exit(access(self, X_OK) ? 1 : 0);
	}
	int st;
	EQ(waitpid(kid, &st, 0), kid);
	if (st)
		t_skip("strangers_depart", "another user cannot execute this program where it lies");
	for (int act = 0; act < ACTS; act++)
		for (int server_departs = 0; server_departs < 2; server_departs++)
			for (int server_is_stranger = 0; server_is_stranger < 2; server_is_stranger++)
				one(server_departs, server_is_stranger, act);
	for (int i = 0; relays(); i++) { // they end with their connections
		CHECK(i < 20000);
		usleep(1000);
	}
	return t_ok("strangers_depart");
}
