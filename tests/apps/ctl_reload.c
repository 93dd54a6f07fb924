// A process loads its rules anew at once, in whatever call its threads sleep: listeners and new connections follow
// them, and connections that are open stay where they are. A forked process does so for itself.
#include "ctl_sleeper.h"
static const char *conf;
// Only the calls of netacc_ctl tell the process of its new rules: it makes none of ours until they have ended.
static void load(pid_t pid, const char *rules, ...)
{
	char text[200];
	va_list args;
	va_start(args, rules);
	vsnprintf(text, sizeof text, rules, args);
	va_end(args);
	write_rules(conf, text);
	ctl("reload", pid);
}
static void new_one(const char *transport, const char *reason)
{
	int c = connect_to(port), s = accept(lsn, NULL, NULL);
	CHECK(s >= 0);
	char b[4];
	send_all(c, "new", 4);
	recv_all(s, b, 4);
	CHECK(!memcmp(b, "new", 4));
	expect_on(c, transport, reason);
	close(c);
	close(s);
}
static void once(void)
{
	volatile pid_t tid = 0;
	pthread_t t;
	char b[8];
	pair(conn);
	send_all(conn[0], "first", 5);
	recv_all(conn[1], b, 5);
	expect_shm(conn[1]);
	CHECK(!pthread_create(&t, NULL, sleeper, (void *)&tid));
	while (!tid)
		usleep(100);
	let_it_block(getpid(), tid);
	load(getpid(), "use=tcp listen=%d", port);
	expect_on(lsn, "TCP", "rule");
	expect_shm(conn[0]);
	expect_shm(conn[1]);
	if (way < ACCEPT)
		new_one("TCP", NULL);
	let_it_block(getpid(), tid);
	// The thread at the kernel's listener hears of this, too.
	load(getpid(), "");
	expect_shm(lsn);
	expect_shm(conn[0]);
	if (way >= ACCEPT) {
		int n = connect_to(port);
		pthread_join(t, NULL);
		send_all(n, "by ring", 8);
		recv_all(got, b, 8);
		CHECK(!memcmp(b, "by ring", 8));
		expect_shm(n);
		close(n);
		close(got);
	} else {
		send_all(conn[0], "abcdefgh", 8);
		pthread_join(t, NULL);
		new_one("SHM", NULL);
	}
	send_all(conn[1], "back", 4);
	recv_all(conn[0], b, 4);
	CHECK(!memcmp(b, "back", 4));
	close(conn[0]);
	EQ(recv(conn[1], b, 8, 0), 0);
	close(conn[1]);
}
// A child sleeps in recv on a connection of its own.
static void child(int c, struct sig asleep, struct sig go)
{
	char b;
	tell(asleep);
	EQ(recv(c, &b, 1, 0), 1);
	int n = connect_to(port);
	expect_on(n, "TCP", "rule");
	expect_shm(c);
	send_all(n, "kid", 4);
	await(go);
	_exit(0);
}
static void forked(void)
{
	struct sig asleep, asleep_here, go, go_there;
	sigpair(&asleep, &asleep_here);
	sigpair(&go, &go_there);
	int c[2];
	pair(c);
	send_all(c[0], "x", 1);
	char b[4];
	recv_all(c[1], b, 1);
	expect_shm(c[1]);
	pid_t kid = fork_child();
	if (!kid) {
		close(c[0]);
		child(c[1], asleep, go_there);
	}
	await(asleep_here);
	close(c[1]);
	let_it_block(kid, kid);
	load(kid, "use=tcp connect=127.0.0.0/8:%d", port);
	send_all(c[0], "y", 1);
	int s = accept(lsn, NULL, NULL);
	CHECK(s >= 0);
	recv_all(s, b, 4);
	CHECK(!memcmp(b, "kid", 4));
	tell(go);
	reap(kid);
	close(s);
	close(c[0]);
	// The parent has its rules still, and hears of them for itself.
	new_one("SHM", NULL);
	// No thread of it is in a call of ours: the next one takes the rules before it decides.
	char rules[100];
	sprintf(rules, "use=tcp connect=127.0.0.0/8:%d", port);
	write_rules(conf, rules);
	ctl_ask("reload", getpid());
	new_one("TCP", "rule");
	write_rules(conf, "");
	ctl_ask("reload", getpid());
	new_one("SHM", NULL);
}
int main(void)
{
	conf = own_rules();
	t_init();
	ep = epoll_create1(0);
	lsn = listen_on(&port);
	for (way = 0; way < WAYS; way++) {
		fprintf(stderr, "%s\n", NAMES[way]);
		once();
	}
	forked();
	unlink(conf);
	return t_ok("ctl_reload");
}
