// Connects wait at a listener that two processes have, and the one at which they wait leaves it: by close, by its end,
// or by running another program. The other process gets all of them with every byte, whatever the clients do meanwhile:
// nothing, something else, or they have closed or ended.
#include "t.h"
enum { BULK = 200000, CLIENTS = 4 };
static unsigned char bulk[BULK];
static int connect_any(int port, int family)
{
	if (family == AF_INET)
		return connect_to(port);
	struct sockaddr_in6 a = { .sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = host6() };
	int fd = socket(AF_INET6, SOCK_STREAM, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a))
		die("connect");
	return fd;
}
static int listen_any(int *port, int family)
{
	if (family == AF_INET)
		return listen_on(port);
	struct sockaddr_in6 a = { .sin6_family = AF_INET6, .sin6_addr = host6() };
	int fd = socket(AF_INET6, SOCK_STREAM, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 128))
		die("listen");
	*port = port_of(fd);
	return fd;
}
static void clients(int port, int family, struct sig with)
{
	char b[8];
	int idle = connect_any(port, family), late = connect_any(port, family), ended = connect_any(port, family);
	send_all(idle, "idle", 4);
	send_all(ended, bulk, BULK);
	close(ended);
	pid_t gone = fork_child(); // its connection is its own
	if (!gone) {
		int c = connect_any(port, family);
		send_all(c, "gone", 4);
		_exit(0);
	}
	reap(gone);
	tell(with);
	await(with); // in a call that is no business of the connections
	send_all(late, "late", 4);
	recv_all(idle, b, 6);
	CHECK(!memcmp(b, "answer", 6));
	EQ(recv(idle, b, 1, 0), 0);
	recv_all(late, b, 6);
	CHECK(!memcmp(b, "answer", 6));
	EQ(recv(late, b, 1, 0), 0);
	_exit(0);
}
static void leave(int l, int how, struct sig with)
{
	EQ(ready(l, POLLIN, -1), POLLIN);
	tell(with);
	await(with);
	if (how == 0) {
		close(l);
		tell(with);
		await(with); // it lives on
	}
	tell(with);
	if (how == 1)
		exit(0);
	execl("/bin/true", "true", NULL);
	_exit(1);
}
static void serve(int s, int *seen)
{
	static unsigned char got[BULK];
	recv_all(s, got, 4);
	if (!memcmp(got, bulk, 4)) {
		recv_all(s, got + 4, BULK - 4);
		EQ(memcmp(got, bulk, BULK), 0);
		EQ(recv(s, got, 1, 0), 0);
		*seen |= 1;
	} else if (!memcmp(got, "gone", 4)) {
		EQ(recv(s, got, 1, 0), 0);
		*seen |= 2;
	} else {
		*seen |= memcmp(got, "idle", 4) ? 4 : 8;
		send_all(s, "answer", 6);
	}
	close(s);
}
static void round_of(int how, int family)
{
	int port, l = listen_any(&port, family), seen = 0;
	struct sig leaver[2], client[2];
	sigpair(&leaver[0], &leaver[1]);
	sigpair(&client[0], &client[1]);
	fcntl(l, F_SETFD, FD_CLOEXEC);
	pid_t a = fork_child();
	if (!a)
		leave(l, how, leaver[1]);
	pid_t c = fork_child();
	if (!c) {
		close(l);
		clients(port, family, client[1]);
	}
	await(client[0]);
	await(leaver[0]);
	tell(leaver[0]);
	if (how == 0)
		await(leaver[0]);
	else
		await(leaver[0]), reap(a);
	int waiting[CLIENTS], n = 0;
	while (n < 4) {
		EQ(ready(l, POLLIN, 20000), POLLIN);
		waiting[n] = accept(l, NULL, NULL);
		CHECK(waiting[n++] >= 0);
	}
	tell(client[0]);
	for (int i = 0; i < n; i++)
		serve(waiting[i], &seen);
	EQ(seen, 15);
	if (how == 0) {
		tell(leaver[0]);
		await(leaver[0]);
		reap(a);
	}
	reap(c);
	close(l);
	for (int i = 0; i < 2; i++)
		close(leaver[i].r), close(leaver[i].w), close(client[i].r), close(client[i].w);
}
int main(void)
{
	t_init();
	pat_fill(bulk, BULK, 0, 5);
	for (int how = 0; how < 3; how++) {
		round_of(how, AF_INET);
		round_of(how, AF_INET6);
	}
	return t_ok("listener_left");
}
