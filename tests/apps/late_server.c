// A process accepts and then does something else. A connect that comes meanwhile is served by its child, which has had the
// listener from the beginning and begins to accept only now: by accept, poll or epoll.
#include "t.h"
enum how { ACCEPT, POLL, EPOLL, HOWS };
static int accept_by(enum how how, int l)
{
	if (how == POLL)
		CHECK(ready(l, POLLIN, -1));
	if (how == EPOLL) {
		int e = epoll_create1(0);
		struct epoll_event x = { EPOLLIN, { 0 } };
		EQ(epoll_ctl(e, EPOLL_CTL_ADD, l, &x), 0);
		EQ(epoll_wait(e, &x, 1, -1), 1);
		close(e);
	}
	return accept(l, NULL, NULL);
}
static void serve_one(enum how how, int l)
{
	char c;
	int s = accept_by(how, l);
	CHECK(s >= 0);
	recv_all(s, &c, 1);
	send_all(s, &c, 1);
	close(s);
}
static void client(int port, struct sig server)
{
	for (int i = 0; i < 2; i++) {
		char c = 'a' + i;
		int s = connect_to(port);
		send_all(s, &c, 1);
		if (i)
			tell(server);
		recv_all(s, &c, 1);
		close(s);
	}
	_exit(0);
}
static void run(enum how how)
{
	int port, l = listen_on(&port);
	struct sig to_heir, of_parent, ours, theirs;
	sigpair(&to_heir, &of_parent);
	sigpair(&ours, &theirs);
	pid_t heir = fork_child();
	if (!heir) {
		await(of_parent);
		serve_one(how, l);
		_exit(0);
	}
	pid_t kid = fork_child();
	if (!kid)
		client(port, theirs);
	serve_one(how, l);
	await(ours);
	tell(to_heir);
	reap(heir);
	reap(kid);
	close(l);
}
int main(void)
{
	t_init();
	for (enum how how = 0; how < HOWS; how++)
		run(how);
	return t_ok("late_server");
}
