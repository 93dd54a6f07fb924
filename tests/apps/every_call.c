// Every call that moves bytes is used on both directions of a connection at once, in sizes from one byte to more than
// any buffer: each call continues where the one before stopped, in order, whichever path the bytes took.
#include "t.h"
#include <sys/mman.h>
enum { BIG = 160 * 1024, LIMIT = 16 << 20 };
static int p[2];
struct stream { int from, to; unsigned kind; };
static unsigned next(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
	return (unsigned)(*seed >> 33);
}
static size_t size(uint64_t *seed)
{
	static const size_t most[] = { 1, 64, 96, 97, 1500, 4096, 16364, 16384, 65536, BIG };
	return 1 + next(seed) % most[next(seed) % 10];
}
static size_t total(void) { return LIMIT / (unsigned)patience(); }
static void await_event(int fd, short event)
{
	while (!ready(fd, event, 1000))
		;
}
static ssize_t put(int fd, unsigned how, unsigned char *b, size_t n, int file, off_t at)
{
	size_t half = n / 2;
	struct iovec v[3] = { { b, half }, { b, 0 }, { b + half, n - half } };
	struct msghdr m = { .msg_iov = v, .msg_iovlen = 3 };
	switch (how) {
	case 0: return send(fd, b, n, MSG_NOSIGNAL);
	case 1: return write(fd, b, n);
	case 2: return writev(fd, v, 3);
	case 3: return sendmsg(fd, &m, MSG_NOSIGNAL);
	case 4:
		// Not over what was sent before: the kernel sends the file's pages themselves.
		if (pwrite(file, b, n, at) != (ssize_t)n)
			die("pwrite");
		return sendfile(fd, file, &at, n);
	default: return send(fd, b, n, MSG_DONTWAIT | MSG_NOSIGNAL);
	}
}
static void *writer(void *x)
{
	struct stream *s = x;
	unsigned char *b = malloc(BIG);
	uint64_t seed = s->kind, at = 0;
	int file = memfd_create("some", 0);
	while (at < total()) {
		size_t n = size(&seed);
		pat_fill(b, n, at, s->kind);
		ssize_t done = put(s->from, next(&seed) % 8, b, n, file, at);
		if (done < 0 && errno == EAGAIN) {
			await_event(s->from, POLLOUT);
			continue;
		}
		if (done <= 0)
			die("%zd of %zu bytes written", done, n);
		at += done;
		// now and then the reader has to wait
		if (next(&seed) % 16 == 0)
			sched_yield();
	}
	EQ(shutdown(s->from, SHUT_WR), 0);
	close(file);
	free(b);
	return NULL;
}
static ssize_t take(int fd, unsigned how, unsigned char *b, size_t n)
{
	size_t half = n / 2;
	struct iovec v[3] = { { b, half }, { b, 0 }, { b + half, n - half } };
	struct msghdr m = { .msg_iov = v, .msg_iovlen = 3 };
	switch (how) {
	case 0: return recv(fd, b, n, 0);
	case 1: return read(fd, b, n);
	case 2: return readv(fd, v, 3);
	case 3: return recvmsg(fd, &m, 0);
	case 4: return recv(fd, b, n, MSG_WAITALL);
	case 5: return recv(fd, b, n, MSG_PEEK);
	case 6: await_event(fd, POLLIN); return recv(fd, b, n, MSG_DONTWAIT);
	default: return recv(fd, b, n, MSG_DONTWAIT);
	}
}
static void *reader(void *x)
{
	struct stream *s = x;
	unsigned char *b = malloc(BIG);
	uint64_t seed = s->kind + 100, at = 0;
	for (;;) {
		unsigned how = next(&seed) % 8;
		size_t n = size(&seed);
		ssize_t done = take(s->to, how, b, n);
		if (done < 0 && errno == EAGAIN && how > 5)
			continue;
		if (done < 0)
			die("read by %u", how);
		if (done == 0)
			break;
		if (how == 4 && (size_t)done < n && at + (size_t)done < total())
			die("MSG_WAITALL gives %zd of %zu", done, n);
		pat_check(b, done, at, s->kind);
		if (how != 5)
			at += done;
	}
	CHECK(at >= total());
	free(b);
	return NULL;
}
int main(void)
{
	t_init();
	pair(p);
	expect_shm(p[0]);
	struct stream ab = { p[0], p[1], 1 }, ba = { p[1], p[0], 2 };
	pthread_t t[4];
	pthread_create(&t[0], NULL, writer, &ab);
	pthread_create(&t[1], NULL, reader, &ab);
	pthread_create(&t[2], NULL, writer, &ba);
	pthread_create(&t[3], NULL, reader, &ba);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	return t_ok("every_call");
}
