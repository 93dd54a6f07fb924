// A non-blocking send takes less than three times SO_SNDBUF if no process reads, and after large sends, of which the
// last one was taken as a whole, a small one still fits.
#include "t.h"
enum { ALL = 4 << 20, ROUNDS = 20 };
static char data[ALL];
static void *reader(void *fd)
{
	static __thread char b[65536];
	while (recv((int)(long)fd, b, sizeof b, 0) > 0)
		;
	return NULL;
}
int main(void)
{
	t_init();
	int p[2], size;
	socklen_t n = sizeof size;
	pair(p);
	expect_shm(p[0]);
	EQ(getsockopt(p[0], SOL_SOCKET, SO_SNDBUF, &size, &n), 0);
	char *b = calloc(3, size);
	ssize_t k = send(p[0], b, 3L * size, MSG_DONTWAIT);
	CHECK(k > 0 && k < 3L * size);
	close(p[0]), close(p[1]);
	for (int i = 0; i < ROUNDS; i++) {
		pthread_t t;
		pair(p);
		CHECK(!pthread_create(&t, NULL, reader, (void *)(long)p[1]));
		for (size_t at = 0; at < ALL;) {
			k = send(p[0], data + at, ALL - at, MSG_DONTWAIT);
			if (k < 0)
				EQ(ready(p[0], POLLOUT, -1), POLLOUT);
			at += k > 0 ? k : 0;
		}
		EQ(send(p[0], "\n", 1, MSG_DONTWAIT), 1);
		shutdown(p[0], SHUT_WR);
		pthread_join(t, NULL);
		close(p[0]), close(p[1]);
	}
	return t_ok("write_behind");
}
