// The client's child sends a byte now and then to a server that waits in epoll_wait, while another thread or another process
// of the server sleeps in send on the same connection, which the client does not read. Whichever of them the wake-up comes
// to first, the instance gets its event.
#include "t.h"
#include <sys/epoll.h>
enum { ROUNDS = 300 };
static void *fills(void *fd)
{
	static char b[100000];
	while (send((int)(intptr_t)fd, b, sizeof b, MSG_NOSIGNAL) > 0)
		;
	return NULL;
}
static void client(int port, struct sig server)
{
	char b;
	int fd = connect_to(port);
	send_all(fd, "a", 1);
	recv_all(fd, &b, 1);
	pid_t kid = fork_child();
	if (!kid) {
		tell(server);
		for (int n = 0; n < ROUNDS; n++) {
			await(server);
			usleep(n % 8 * 100); // the server should sleep by now
			send_all(fd, "x", 1);
		}
		await(server); // The end resets the connection, which has bytes that nobody read, and takes the last "x" with it.
		_exit(0);
	}
	reap(kid);
	_exit(0);
}
int main(void)
{
	t_init();
	signal(SIGPIPE, SIG_IGN);
	for (int by_child = 0; by_child < 2; by_child++) {
		int port, l = listen_on(&port);
		struct sig ours, theirs;
		sigpair(&ours, &theirs);
		pid_t kid = fork_child(), other = 0;
		if (!kid)
			client(port, theirs);
		char b;
		int fd = accept(l, NULL, NULL);
		CHECK(fd >= 0);
		close(l);
		recv_all(fd, &b, 1);
		send_all(fd, &b, 1);
		await(ours); // from here on the client's child knows nothing new of this process
		expect_shm(fd);
		pthread_t t;
		if (by_child) {
			other = fork_child();
			if (!other) {
				fills((void *)(intptr_t)fd);
				_exit(0);
			}
		} else {
			EQ(pthread_create(&t, NULL, fills, (void *)(intptr_t)fd), 0);
		}
		int ep = epoll_create1(0);
		struct epoll_event e = { .events = EPOLLIN };
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e), 0);
		for (int n = 0; n < ROUNDS; n++) {
			tell(ours);
			EQ(epoll_wait(ep, &e, 1, -1), 1);
			recv_all(fd, &b, 1);
			EQ(b, 'x');
		}
		tell(ours);
		reap(kid);
		if (by_child)
			reap(other);
		else
			EQ(pthread_join(t, NULL), 0);
		close(ep);
		close(fd);
	}
	return t_ok("fork_byte_taken");
}
