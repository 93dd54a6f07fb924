// A non-blocking writer to a reader that does not read gets EAGAIN and no POLLOUT, and POLLOUT when the reader has
// read. A blocking writer blocks and resumes. Other connections of the same two processes go on meanwhile.
#include "t.h"
static unsigned char b[1 << 16];
int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	struct sig s, m;
	sigpair(&s, &m);
	pid_t kid = fork_child();
	if (!kid) {
		uint64_t total, off = 0;
		int fd = connect_to(port), other = connect_to(port);
		await(s); // the writer is at EAGAIN
		for (int i = 0; i < 1000; i++) { // the neighbour is not hindered
			send_all(other, b, 100);
			recv_all(other, b, 100);
		}
		tell(s);
		await(s);
		if (read(s.r, &total, 8) != 8)
			die("pipe");
		while (off < total) {
			ssize_t r = recv(fd, b, sizeof b, 0);
			CHECK(r > 0);
			pat_check(b, r, off, 3);
			off += r;
		}
		await(s); // the blocking writer is about to write 30 MB
		let_it_block(getppid(), getppid());
		total += 30000000;
		while (off < total) {
			ssize_t r = recv(fd, b, 50000, 0);
			CHECK(r > 0);
			pat_check(b, r, off, 3);
			off += r;
		}
		EQ(recv(fd, b, 1, 0), 0);
		_exit(0);
	}
	int fd = nonblock(accept(l, NULL, NULL)), other = accept(l, NULL, NULL);
	expect_shm(fd);
	uint64_t off = 0;
	// The kernel finds room for a little more when it probes the reader's window, 200 ms after it has been shut.
	for (int quiet = 0; quiet < 10; quiet++) {
		ssize_t r;
		do {
			pat_fill(b, sizeof b, off, 3);
			r = send(fd, b, sizeof b, 0);
			if (r > 0) {
				off += r;
				quiet = 0;
			}
		} while (r > 0);
		EQ(errno, EAGAIN);
		if (ready(fd, POLLOUT, 50))
			quiet = 0;
	}
	FAILS(send(fd, b, 1, 0), EAGAIN);
	fd_set w;
	FD_ZERO(&w);
	FD_SET(fd, &w);
	EQ(select(fd + 1, NULL, &w, NULL, &(struct timeval){ 0, 10000 }), 0);
	tell(m);
	for (int i = 0; i < 1000; i++) {
		recv_all(other, b, 100);
		send_all(other, b, 100);
	}
	await(m);
	EQ(ready(fd, POLLOUT, 0), 0);
	tell(m);
	if (write(m.w, &off, 8) != 8)
		die("pipe");
	EQ(ready(fd, POLLOUT, 10000), POLLOUT);
	fcntl(fd, F_SETFL, 0);
	tell(m);
	for (uint64_t end = off + 30000000; off < end;) {
		size_t n = end - off < sizeof b ? end - off : sizeof b;
		pat_fill(b, n, off, 3);
		EQ(send(fd, b, n, 0), n); // blocking: all or nothing
		off += n;
	}
	close(fd);
	reap(kid);
	return t_ok("stalled_reader");
}
