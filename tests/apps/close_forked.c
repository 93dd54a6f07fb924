// A child of a fork waits in recv while another of its threads closes the descriptor, whose number another socket then
// gets: that socket's bytes are not touched, and the call ends as if nothing had been closed.
#include "t.h"
static int conn;
static pid_t tid;
// Until the thread sleeps in the kernel, some looks in a row.
static void wait_asleep(pid_t *t)
{
	for (int seen = 0; seen < 20;) {
		char path[64], line[200], *p = NULL;
		snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)__atomic_load_n(t, __ATOMIC_SEQ_CST));
		FILE *f = fopen(path, "r");
		if (f) {
			if (fgets(line, sizeof line, f))
				p = strrchr(line, ')');
			fclose(f);
		}
		seen = p && p[2] == 'S' ? seen + 1 : 0;
		sched_yield();
	}
}
static void *waits(void *arg)
{
	char b[4];
	(void)arg;
	__atomic_store_n(&tid, gettid(), __ATOMIC_SEQ_CST);
	EQ(recv(conn, b, 4, 0), 1);
	EQ(b[0], 'a');
	return NULL;
}
static void child(int go)
{
	pthread_t t;
	char b[4];
	int p[2];
	CHECK(!pthread_create(&t, NULL, waits, NULL));
	wait_asleep(&tid);
	close(conn);
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, p));
	int at = p[0] == conn ? p[0] : dup2(p[0], conn);
	EQ(at, conn);
	EQ(write(p[1], "own", 3), 3);
	EQ(write(go, "!", 1), 1);
	CHECK(!pthread_join(t, NULL));
	EQ(recv(conn, b, 4, MSG_DONTWAIT), 3);
	CHECK(!memcmp(b, "own", 3));
	EQ(recv(p[1], b, 4, MSG_DONTWAIT), -1); // nor does anybody write there
	_exit(0);
}
int main(void)
{
	t_init();
	int s[2], go[2];
	char b[4];
	pair(s);
	expect_shm(s[0]);
	CHECK(!pipe(go));
	conn = s[0];
	pid_t c = fork_child();
	if (!c) {
		close(s[1]);
		child(go[1]);
	}
	close(s[0]);
	EQ(read(go[0], b, 1), 1);
	send_all(s[1], "a", 1);
	reap(c);
	return t_ok("close_forked");
}
