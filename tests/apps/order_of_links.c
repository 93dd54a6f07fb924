// Two processes have served a listener. A client makes many connects while the one that is left is busy: it accepts them in the
// order in which they were made, however many ways lead to it.
#include "t.h"
enum { SERVED = 40, MANY = 200 };
static int accepted(int l)
{
	int s;
	do
		CHECK(ready(l, POLLIN, -1));
	while ((s = accept(l, NULL, NULL)) < 0 && errno == EAGAIN);
	CHECK(s >= 0);
	return s;
}
// Answers one connection after the other until a client tells this process to leave off.
static void serve(int l)
{
	for (char c = 0; c != 'q';) {
		int s = accepted(l);
		recv_all(s, &c, 1);
		send_all(s, &c, 1);
		close(s);
	}
}
static void client(int port, struct sig server)
{
	static int fd[MANY];
	for (int i = 0; i < SERVED + 2; i++) {
		char c = i < SERVED ? 'x' : 'q';
		int s = connect_to(port);
		send_all(s, &c, 1);
		recv_all(s, &c, 1);
		close(s);
	}
	await(server);
	for (int i = 0; i < MANY; i++) {
		fd[i] = connect_to(port);
		send_all(fd[i], &i, sizeof i);
	}
	tell(server);
	await(server);
	_exit(0);
}
int main(void)
{
	t_init();
	int port, l = listen_n(MANY, &port);
	struct sig ours, theirs;
	EQ(fcntl(l, F_SETFL, O_NONBLOCK), 0);
	sigpair(&ours, &theirs);
	pid_t other = fork_child();
	if (!other) {
		serve(l);
		_exit(0);
	}
	pid_t kid = fork_child();
	if (!kid)
		client(port, theirs);
	serve(l);
	reap(other);
	tell(ours);
	await(ours);
	for (int n, i = 0; i < MANY; i++) {
		int s = accepted(l);
		recv_all(s, &n, sizeof n);
		EQ(n, i);
	}
	tell(ours);
	reap(kid);
	return t_ok("order_of_links");
}
