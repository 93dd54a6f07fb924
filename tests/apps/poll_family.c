// poll, ppoll, select and pselect report what is ready and handle time-outs, listeners, ends and bad descriptors as
// with TCP.
#include "t.h"
static int p[2], l, port;
static void *later(void *x)
{
	let_it_block(getpid(), getpid());
	if (x)
		close(connect_to(port));
	else
		send_all(p[1], "x", 1);
	return NULL;
}
static int wait_in(int how, int fd, int ms) // readable?
{
	struct pollfd pf = { fd, POLLIN, 0 };
	struct timespec ts = { ms / 1000, ms % 1000 * 1000000L };
	struct timeval tv = { ms / 1000, ms % 1000 * 1000 };
	fd_set r, w;
	FD_ZERO(&r);
	FD_ZERO(&w);
	FD_SET(fd, &r);
	switch (how) {
	case 0: return poll(&pf, 1, ms);
	case 1: return ppoll(&pf, 1, &ts, NULL);
	case 2: {
		int n = select(fd + 1, &r, &w, NULL, &tv);
		if (n == 1)
			CHECK(FD_ISSET(fd, &r));
		else
			CHECK(!FD_ISSET(fd, &r));
		if (n == 0)
			CHECK(tv.tv_sec == 0 && tv.tv_usec == 0); // Linux counts it down
		return n;
	}
	default: return pselect(fd + 1, &r, NULL, NULL, &ts, NULL);
	}
}
int main(void)
{
	t_init();
	l = listen_on(&port);
	pair(p);
	char c;
	for (int how = 0; how < 4; how++) {
		EQ(wait_in(how, p[0], 0), 0);
		double t0 = now();
		EQ(wait_in(how, p[0], 40), 0);
		CHECK(now() - t0 > 0.038 && now() - t0 < 2);
		pthread_t t;
		pthread_create(&t, NULL, later, NULL);
		EQ(wait_in(how, p[0], 10000), 1);
		EQ(recv(p[0], &c, 1, MSG_DONTWAIT), 1);
		pthread_join(t, NULL);
		pthread_create(&t, NULL, later, p);
		EQ(wait_in(how, l, 10000), 1);
		int s = accept(l, NULL, NULL);
		CHECK(s >= 0);
		close(s);
		pthread_join(t, NULL);
		EQ(wait_in(how, l, 0), 0);
	}
	struct pollfd pf[4] = { { p[0], POLLIN | POLLOUT, 0 }, { -1, POLLIN, 7 }, { 9999, POLLIN, 0 }, { l, POLLIN | POLLOUT, 0 } };
	EQ(poll(pf, 4, 100), 2);
	EQ(pf[0].revents, POLLOUT);
	EQ(pf[1].revents, 0);
	EQ(pf[2].revents, POLLNVAL);
	EQ(pf[3].revents, 0);
	int s = socket(AF_INET, SOCK_STREAM, 0);
	EQ(ready(s, POLLIN | POLLOUT, 0), POLLOUT | POLLHUP);
	close(s);
	send_all(p[1], "ab", 2);
	shutdown(p[1], SHUT_WR);
	CHECK(ready(p[0], POLLRDHUP, 1000));
	EQ(ready(p[0], POLLIN | POLLOUT | POLLRDHUP, 0), POLLIN | POLLOUT | POLLRDHUP);
	EQ(ready(p[1], POLLIN | POLLOUT | POLLRDHUP, 0), POLLOUT);
	EQ(shutdown(p[0], SHUT_WR), 0);
	CHECK(ready(p[0], 0, 1000));
	EQ(ready(p[0], POLLIN | POLLOUT | POLLRDHUP, 0), POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
	CHECK(ready(p[1], POLLRDHUP, 1000));
	EQ(ready(p[1], POLLIN | POLLOUT | POLLRDHUP, 0), POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
	fd_set r, w, x;
	FD_ZERO(&r);
	FD_SET(p[0], &r);
	w = x = r;
	EQ(select(p[0] + 1, &r, &w, &x, NULL), 2);
	CHECK(FD_ISSET(p[0], &r) && FD_ISSET(p[0], &w) && !FD_ISSET(p[0], &x));
	FD_ZERO(&r);
	FD_SET(50, &r); // a closed number beyond the size of the table would be ignored by Linux
	FAILS(select(51, &r, NULL, NULL, &(struct timeval){ 0, 0 }), EBADF);
	FAILS(select(-1, NULL, NULL, NULL, &(struct timeval){ 0, 0 }), EINVAL);
	FAILS(ppoll(pf, 1, &(struct timespec){ 0, -1 }, NULL), EINVAL);
	EQ(poll(NULL, 0, 10), 0);
	return t_ok("poll_family");
}
