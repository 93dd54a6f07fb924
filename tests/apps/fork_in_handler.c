// A signal handler forks while a call waits: parent and child both go on waiting in it, and each gets the bytes that
// are sent to it.
#include "t.h"
#include <sys/mman.h>
static volatile pid_t child;
static volatile int *waiting; // the child's thread id, for all
static pid_t maintid;
static int p[2], how;
static void on_usr(int s)
{
	(void)s;
	pid_t c = fork();
	if (c)
		child = c;
	else {
		alarm(t_limit());
		*waiting = gettid();
	}
}
static void *helper(void *x)
{
	let_it_block(getpid(), maintid);
	EQ(kill(getpid(), SIGUSR1), 0);
	while (!child || !*waiting)
		sched_yield();
	CHECK(child > 0);
	let_it_block(child, *waiting);
	let_it_block(getpid(), maintid);
	send_all(p[1], "ab", 2);
	return x;
}
int main(void)
{
	t_init();
	waiting = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	maintid = gettid();
	pid_t parent = getpid();
	signal(SIGUSR1, on_usr); // with SA_RESTART
	int port, l = listen_on(&port);
	for (how = 0; how < 6; how++) {
		p[0] = connect_to(port);
		p[1] = accept(l, NULL, NULL);
		child = *waiting = 0;
		pthread_t t;
		sigset_t usr;
		sigemptyset(&usr);
		sigaddset(&usr, SIGUSR1);
		pthread_sigmask(SIG_BLOCK, &usr, NULL);
		EQ(pthread_create(&t, NULL, helper, NULL), 0);
		pthread_sigmask(SIG_UNBLOCK, &usr, NULL);
		char c = 0;
		struct pollfd f = { p[0], POLLIN, 0 };
		struct iovec v = { &c, 1 };
		struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };
		long r;
		switch (how % 3) {
		case 0: r = recv(p[0], &c, 1, 0); break;
		case 1: r = recvmsg(p[0], &m, 0); break;
		default: // never restarted
			while ((r = poll(&f, 1, -1)) < 0 && errno == EINTR)
				;
			r = recv(p[0], &c, 1, 0);
		}
		EQ(r, 1);
		CHECK(c == 'a' || c == 'b');
		if (getpid() != parent)
			_exit(c);
		EQ(pthread_join(t, NULL), 0);
		int status;
		EQ(waitpid(child, &status, 0), child);
		CHECK(WIFEXITED(status));
		EQ(WEXITSTATUS(status) + c, 'a' + 'b');
		close(p[0]);
		close(p[1]);
	}
	return t_ok("fork_in_handler");
}
