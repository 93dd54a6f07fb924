// One thread looks at a connection without waiting, by any call that takes no lock for it, while another thread closes it.
// The connection is the last one of its link, whose memory the library then has no use for: the look must not fault. Both
// threads run on one processor, so that the looking one is interrupted at any instruction.
#include "t.h"
#include <sched.h>

enum { ROUNDS = 150 };
enum look { READABLE, UNSENT, ERROR, PEER, POLL, SELECT, LOOKS };

static volatile int fd, stop;
static volatile long looks;

static void look(enum look how)
{
	int n = 0;
	socklen_t len = sizeof n;
	struct pollfd p = {fd, POLLIN, 0};
	struct sockaddr_in a;
	struct timeval now = {0, 0};
	fd_set set;
	switch (how) {
	case READABLE:
		ioctl(fd, FIONREAD, &n);
		break;
	case UNSENT:
		ioctl(fd, TIOCOUTQ, &n);
		break;
	case ERROR:
		getsockopt(fd, SOL_SOCKET, SO_ERROR, &n, &len);
		break;
	case PEER:
		len = sizeof a;
		getpeername(fd, (void *)&a, &len);
		break;
	case POLL:
		poll(&p, 1, 0);
		break;
	case SELECT:
		FD_ZERO(&set);
		FD_SET(fd, &set);
		select(fd + 1, &set, NULL, NULL, &now);
		break;
	case LOOKS:
		break;
	}
}

static void *looker(void *how)
{
	while (!stop) {
		look((enum look)(long)how);
		looks++;
	}
	return NULL;
}

// The client is another process, so that this one has one side of the link only.
static pid_t client(int port)
{
	pid_t kid = fork_child();
	if (kid)
		return kid;
	int s = connect_to(port);
	char c;
	EQ(write(s, "x", 1), 1);
	while (read(s, &c, 1) == 1)
		;
	_exit(0);
}

static void once(enum look how, unsigned *seed)
{
	int port, l = listen_on(&port);
	pid_t kid = client(port);
	char c;
	fd = accept(l, NULL, NULL);
	CHECK(fd >= 0);
	EQ(recv(fd, &c, 1, 0), 1);
	// A listener that is open keeps the links of its clients.
	close(l);
	stop = 0;
	looks = 0;
	pthread_t t;
	CHECK(!pthread_create(&t, NULL, looker, (void *)(long)how));
	while (!looks)
		sched_yield();
	// A timer takes the processor from the looking thread wherever that is.
	usleep(20 + rand_r(seed) % 200);
	close(fd);
	usleep(20);
	stop = 1;
	pthread_join(t, NULL);
	reap(kid);
}

int main(void)
{
	t_init();
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	EQ(sched_setaffinity(0, sizeof one, &one), 0);
	unsigned seed = (unsigned)getpid();
	for (int i = 0; i < ROUNDS; i++)
		for (enum look how = 0; how < LOOKS; how++)
			once(how, &seed);
	return t_ok("look_beside_close");
}
