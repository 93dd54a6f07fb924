// A handler runs while its thread sleeps in a send to a client that is not accelerated, with and without SA_RESTART.
#include "t.h"
#include <signal.h>
#include <sys/syscall.h>
static volatile sig_atomic_t ran;
static void count(int s)
{
	(void)s;
	ran++;
}
static int outsider(char **argv)
{
	int port;
	struct sig s = outsiders(argv, &port);
	int fd = connect_to(port);
	tell(s);
	await(s); // the server's first handler has run
	static char b[1 << 20];
	while (recv(fd, b, sizeof b, 0) > 0)
		;
	return 0;
}
static pid_t main_thread;
// Sends a signal to the main thread as soon as that sleeps, and waits until its handler has run.
static void *poke(void *x)
{
	int before = ran;
	let_it_block(main_thread, main_thread);
	EQ(syscall(SYS_tgkill, main_thread, main_thread, (int)(long)x), 0);
	while (ran == before)
		sched_yield();
	return NULL;
}
static void *go_on(void *x)
{
	while (ran < 3)
		sched_yield();
	tell(*(struct sig *)x);
	return NULL;
}
static void handled(int how, int signal)
{
	struct sigaction a = {.sa_handler = count, .sa_flags = how};
	EQ(sigaction(signal, &a, NULL), 0);
}
int main(int argc, char **argv)
{
	if (argc > 1)
		return outsider(argv);
	t_init();
	main_thread = getpid();
	int port, l = listen_on(&port);
	struct sig ours, theirs;
	sigpair(&ours, &theirs);
	pid_t kid = fork_child();
	if (!kid)
		go_outside(port, theirs);
	int fd = accept(l, NULL, NULL);
	CHECK(fd >= 0);
	await(ours);
	static char b[64 << 20];
	pthread_t t;
	handled(0, SIGUSR1);
	EQ(pthread_create(&t, NULL, poke, (void *)(long)SIGUSR1), 0);
	ssize_t n = send(fd, b, sizeof b, MSG_NOSIGNAL);
	CHECK(n > 0 && n < (ssize_t)sizeof b); // the signal has ended it
	pthread_join(t, NULL);
	EQ(ran, 1);
	do // what is on its way arrives, and makes room
		while (send(fd, b, sizeof b, MSG_NOSIGNAL | MSG_DONTWAIT) > 0)
			;
	while (ready(fd, POLLOUT, 50) || send(fd, b, sizeof b, MSG_NOSIGNAL | MSG_DONTWAIT) > 0);
	EQ(pthread_create(&t, NULL, poke, (void *)(long)SIGUSR1), 0);
	FAILS(send(fd, b, sizeof b, MSG_NOSIGNAL), EINTR);
	pthread_join(t, NULL);
	handled(SA_RESTART, SIGUSR2);
	EQ(pthread_create(&t, NULL, poke, (void *)(long)SIGUSR2), 0);
	// The reader goes on after the handler has run in a call that has sent nothing.
	pthread_t u;
	EQ(pthread_create(&u, NULL, go_on, &ours), 0);
	EQ(send(fd, b, 1 << 20, MSG_NOSIGNAL), 1 << 20);
	pthread_join(t, NULL);
	pthread_join(u, NULL);
	EQ(ran, 3);
	close(fd);
	reap(kid);
	return t_ok("signal_to_writer");
}
