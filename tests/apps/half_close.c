// Each side half-closes with data in flight: all bytes before the end arrive, and the other direction goes on.
#include "t.h"
enum { N = 1000000 };
static unsigned char a[N], b[N];
int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	for (int first = 0; first < 2; first++) { // 0: the client closes its direction first, 1: the server
		pid_t kid = fork_child();
		if (!kid) { // client
			int fd = connect_to(port);
			if (!first) {
				pat_fill(a, N, 0, 1);
				send_all(fd, a, N);
				EQ(shutdown(fd, SHUT_WR), 0);
				EQ(send(fd, a, 1, MSG_NOSIGNAL), -1);
				EQ(errno, EPIPE);
				recv_all(fd, b, N);
				pat_check(b, N, 0, 2);
				EQ(recv(fd, b, 1, 0), 0);
			} else {
				ssize_t r;
				size_t n = 0;
				while ((r = recv(fd, b + n, N - n, 0)) > 0)
					n += r;
				EQ(r, 0);
				EQ(n, N);
				pat_check(b, N, 0, 2);
				pat_fill(a, N, 0, 1);
				send_all(fd, a, N);
			}
			close(fd);
			_exit(0);
		}
		int fd = accept(l, NULL, NULL);
		if (!first) {
			size_t n = 0;
			ssize_t r;
			while ((r = recv(fd, b + n, N - n, 0)) > 0)
				n += r;
			EQ(r, 0);
			EQ(n, N);
			pat_check(b, N, 0, 1);
			EQ(ready(fd, POLLIN | POLLOUT | POLLRDHUP, 0), POLLIN | POLLOUT | POLLRDHUP);
			EQ(recv(fd, b, 1, 0), 0); // and again
			pat_fill(a, N, 0, 2);
			send_all(fd, a, N);
		} else {
			pat_fill(a, N, 0, 2);
			send_all(fd, a, N);
			EQ(shutdown(fd, SHUT_WR), 0);
			recv_all(fd, b, N);
			pat_check(b, N, 0, 1);
			EQ(recv(fd, b, 1, 0), 0);
		}
		close(fd);
		reap(kid);
	}
	return t_ok("half_close");
}
