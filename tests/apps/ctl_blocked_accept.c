// A thread sleeps in the kernel's accept(2), since its process is switched off, while another thread switches the
// process on. The listener is accelerated again, and a client must be served although the sleeping thread does not
// notice.
#include "ctl.h"
static int port, l;
static void *server(void *x)
{
	*(volatile pid_t *)x = gettid();
	for (int i = 0; i < 3; i++) {
		char b[4];
		int c = accept(l, NULL, NULL);
		CHECK(c >= 0);
		recv_all(c, b, 4);
		send_all(c, b, 4);
		close(c);
	}
	return NULL;
}
static void client(const char *text)
{
	pid_t kid = fork_child();
	if (!kid) {
		char b[4];
		int c = connect_to(port);
		send_all(c, text, 4);
		recv_all(c, b, 4);
		CHECK(!memcmp(b, text, 4));
		_exit(0);
	}
	reap(kid);
}
int main(void)
{
	t_init();
	volatile pid_t tid = 0;
	pthread_t t;
	l = listen_on(&port);
	CHECK(!pthread_create(&t, NULL, server, (void *)&tid));
	while (!tid)
		usleep(100);
	let_it_block(getpid(), tid);
	client("one.");
	let_it_block(getpid(), tid);
	// The thread goes to sleep in the kernel.
	ctl("off", getpid());
	let_it_block(getpid(), tid);
	ctl_ask("on", getpid());
	// This thread hears of it.
	int other;
	close(listen_on(&other));
	usleep(100000);
	client("two.");
	client("last");
	pthread_join(t, NULL);
	return t_ok("ctl_blocked_accept");
}
