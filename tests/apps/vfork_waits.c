// In vfork(2) the parent stands still until the child has ended or executed, and without sockets it sees what the child
// wrote, such as the errno of an exec that failed. It does not wait for a child of the child, or of another thread.
#include "t.h"
static volatile int wrote;
static int order[2];
static void *forker(void *w) // a child that lives on, with copies of everything
{
	pid_t p = fork();
	if (!p) {
		pause();
		_exit(0);
	}
	*(pid_t *)w = p;
	return NULL;
}
static void waits(int seen)
{
	char c[2] = { 0 };
	EQ(pipe(order), 0);
	wrote = 0;
	pid_t p = vfork();
	if (p == 0) {
		usleep(50000);
		ssize_t r = write(order[1], "c", 1);
		(void)r;
		execl("/nonexistent", "x", (char *)NULL);
		wrote = errno;
		_exit(127);
	}
	EQ(write(order[1], "p", 1), 1);
	if (seen)
		EQ(wrote, ENOENT);
	EQ(read(order[0], c, 2), 2);
	EQ(memcmp(c, "cp", 2), 0);
	int st;
	EQ(waitpid(p, &st, 0), p);
	EQ(WEXITSTATUS(st), 127);
	close(order[0]), close(order[1]);
}
static void executes(void)
{
	int p[2];
	EQ(pipe(p), 0);
	pid_t c = vfork();
	if (c == 0) {
		close(p[1]);
		dup2(p[0], 0);
		execl("/bin/cat", "cat", (char *)NULL);
		_exit(1);
	}
	close(p[0]); // cat runs: it ends when we close our end
	close(p[1]);
	reap(c);
}
static void ends(void)
{
	pid_t c = vfork();
	if (c == 0)
		_exit(0);
	reap(c);
}
static void others_live_on(void)
{
	int p[2];
	pid_t grandchild;
	EQ(pipe(p), 0);
	pid_t c = vfork();
	if (c == 0) {
		pid_t g = fork();
		if (g == 0) {
			pause();
			_exit(0);
		}
		ssize_t r = write(p[1], &g, sizeof g);
		_exit(r != sizeof g);
	}
	reap(c);
	EQ(read(p[0], &grandchild, sizeof grandchild), (long)sizeof grandchild);
	EQ(kill(grandchild, SIGKILL), 0);
	pid_t many[8];
	pthread_t t[8];
	for (int i = 0; i < 8; i++)
		CHECK(!pthread_create(t + i, NULL, forker, many + i));
	for (int i = 0; i < 8; i++)
		ends();
	for (int i = 0; i < 8; i++) {
		pthread_join(t[i], NULL);
		EQ(kill(many[i], SIGKILL), 0);
		reap_killed(many[i]);
	}
	close(p[0]), close(p[1]);
}
int main(void)
{
	t_init();
	waits(1);
	close(epoll_create1(0));
	waits(1);
	executes();
	int p[2];
	pair(p);
	waits(0);
	executes();
	expect_shm(p[0]);
	others_live_on();
	char b;
	send_all(p[0], "x", 1);
	recv_all(p[1], &b, 1);
	return t_ok("vfork_waits");
}
