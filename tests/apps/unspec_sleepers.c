// connect(2) with AF_UNSPEC beside a thread that sleeps in recv or send: EPIPE there, and the reset is left to SO_ERROR.
#include "t.h"
enum { RECV, PEEK, WAITALL, SEND, KINDS };
static int p[2], kind;
static char big[1 << 20];
static pid_t tid;
static pthread_barrier_t begun;

static void *sleeper(void *x)
{
	static const int FLAGS[] = { [PEEK] = MSG_PEEK, [WAITALL] = MSG_WAITALL };
	char b[8];
	tid = gettid();
	pthread_barrier_wait(&begun);
	if (kind == SEND) {
		while (send(p[0], big, sizeof big, MSG_NOSIGNAL) > 0) {}
		CHECK(errno == EPIPE || errno == ECONNRESET);
	} else {
		ssize_t n = recv(p[0], b, sizeof b, FLAGS[kind]);
		CHECK(n == -1 && (errno == EPIPE || errno == ECONNRESET)); // ECONNRESET up to Linux 6.5
		int e = errno, error;
		socklen_t len = sizeof error;
		EQ(getsockopt(p[0], SOL_SOCKET, SO_ERROR, &error, &len), 0);
		EQ(error, e == EPIPE ? ECONNRESET : 0);
	}
	return x;
}
int main(void)
{
	t_init();
	pthread_barrier_init(&begun, NULL, 2);
	for (kind = 0; kind < KINDS; kind++) {
		pthread_t t;
		pair(p);
		EQ(pthread_create(&t, NULL, sleeper, NULL), 0);
		pthread_barrier_wait(&begun);
		let_it_block(getpid(), tid);
		EQ(connect(p[0], &(struct sockaddr){ .sa_family = AF_UNSPEC }, sizeof(struct sockaddr)), 0);
		pthread_join(t, NULL);
		char b[8];
		FAILS(recv(p[0], b, 8, MSG_DONTWAIT), ENOTCONN);
		close(p[0]), close(p[1]);
	}
	return t_ok("unspec_sleepers");
}
