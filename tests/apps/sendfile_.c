// sendfile works with and without an offset pointer, blocking (it sends everything), non-blocking (EAGAIN, then
// continued) and past the end of the file; splice works from a pipe to the socket and back.
#include "t.h"
#include <sys/mman.h>
enum { N = 6000000 };
static unsigned char a[N], b[N];
static int p[2];
static void *reader(void *x)
{
	recv_all(p[1], b, (size_t)(long)x);
	return NULL;
}
int main(void)
{
	t_init();
	int f = memfd_create("data", 0);
	pat_fill(a, N, 0, 4);
	EQ(write(f, a, N), N);
	pair(p);
	expect_shm(p[0]);
	off_t o = 100;
	pthread_t t;
	EQ(lseek(f, 7, SEEK_SET), 7);
	EQ(sendfile(p[0], f, &o, 1000), 1000);
	EQ(o, 1100);
	EQ(lseek(f, 0, SEEK_CUR), 7); // untouched
	recv_all(p[1], b, 1000);
	pat_check(b, 1000, 100, 4);
	EQ(sendfile(p[0], f, NULL, 500), 500);
	EQ(lseek(f, 0, SEEK_CUR), 507);
	recv_all(p[1], b, 500);
	pat_check(b, 500, 7, 4);
	o = N - 10;
	EQ(sendfile(p[0], f, &o, 1000), 10);
	EQ(o, N);
	EQ(sendfile(p[0], f, &o, 1000), 0);
	recv_all(p[1], b, 10);
	pat_check(b, 10, N - 10, 4);
	pthread_create(&t, NULL, reader, (void *)(long)N);
	o = 0;
	EQ(sendfile(p[0], f, &o, N), N); // blocking: everything
	pthread_join(t, NULL);
	CHECK(!memcmp(a, b, N));
	nonblock(p[0]);
	size_t sent = 0, got = 0;
	int stalls = 0;
	memset(b, 0, N);
	EQ(lseek(f, 0, SEEK_SET), 0);
	while (sent < N) {
		ssize_t r = sendfile(p[0], f, NULL, N - sent);
		if (r < 0) {
			EQ(errno, EAGAIN);
			EQ(lseek(f, 0, SEEK_CUR), sent); // the position tells what was taken
			stalls++;
			ssize_t g = recv(p[1], b + got, N - got, MSG_DONTWAIT);
			if (g > 0)
				got += g;
			ready(p[0], POLLOUT, 5);
			continue;
		}
		CHECK(r > 0);
		sent += r;
	}
	CHECK(stalls > 0);
	recv_all(p[1], b + got, N - got);
	CHECK(!memcmp(a, b, N));
	fcntl(p[0], F_SETFL, 0);
	FAILS(sendfile(p[0], p[1], NULL, 10), EINVAL); // from a socket
	EQ(shutdown(p[0], SHUT_WR), 0);
	signal(SIGPIPE, SIG_IGN);
	o = 0;
	FAILS(sendfile(p[0], f, &o, 10), EPIPE);
	o = lseek(f, 0, SEEK_END);
	EQ(sendfile(p[0], f, &o, 10), 0); // nothing to send, nothing to fail
	EQ(sendfile(p[0], f, NULL, 10), 0);
	// splice
	int pi[2];
	EQ(pipe(pi), 0);
	EQ(write(pi[1], "spliced", 7), 7);
	EQ(splice(pi[0], NULL, p[1], NULL, 7, 0), 7);
	recv_all(p[0], b, 7);
	CHECK(!memcmp(b, "spliced", 7));
	send_all(p[1], "backward", 8);
	CHECK(ready(p[0], POLLIN, 1000));
	EQ(splice(p[0], NULL, pi[1], NULL, 100, 0), 8);
	EQ(read(pi[0], b, 100), 8);
	CHECK(!memcmp(b, "backward", 8));
	nonblock(p[0]); // SPLICE_F_NONBLOCK alone would block: it concerns the pipe only
	FAILS(splice(p[0], NULL, pi[1], NULL, 100, 0), EAGAIN);
	fcntl(p[0], F_SETFL, 0);
	close(p[1]);
	EQ(splice(p[0], NULL, pi[1], NULL, 100, 0), 0);
	return t_ok("sendfile_");
}
