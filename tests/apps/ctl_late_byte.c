// A byte comes through the pipe by which netacc_ctl wakes a process, but there is no request, since a busy thread may
// have seen it before the byte was written. A sleeping thread must go on sleeping and use no processor time.
#include "ctl.h"
enum way { RECV, POLL, SELECT, ACCEPT, EPOLL, WAYS };
static const char *NAMES[] = { "recv", "poll", "select", "accept", "epoll" };
static int ep, lsn, port, conn[2];
static enum way way;
static void *sleeper(void *x)
{
	struct epoll_event ev = { .events = EPOLLIN };
	fd_set f;
	char b;
	*(volatile pid_t *)x = gettid();
	switch (way) {
	case POLL:
		EQ(ready(conn[1], POLLIN, -1), 1);
		break;
	case SELECT:
		FD_ZERO(&f);
		FD_SET(conn[1], &f);
		EQ(select(conn[1] + 1, &f, NULL, NULL, NULL), 1);
		break;
	case EPOLL:
		EQ(epoll_wait(ep, &ev, 1, -1), 1);
		break;
	case ACCEPT:
		close(accept(lsn, NULL, NULL));
		return NULL;
	default:
		break;
	}
	EQ(recv(conn[1], &b, 1, 0), 1);
	return NULL;
}
// Writes a byte into every pipe without a name that is none of the first three descriptors: this program makes none itself.
static int ring(void)
{
	char path[300], to[100];
	int rung = 0;
	DIR *d = opendir("/proc/self/fd");
	CHECK(d);
	for (struct dirent *e; (e = readdir(d));) {
		snprintf(path, sizeof path, "/proc/self/fd/%s", e->d_name);
		ssize_t n = readlink(path, to, sizeof to - 1);
		to[n > 0 ? n : 0] = 0;
		int fd = atoi(e->d_name) > 2 && !strncmp(to, "pipe:[", 6) ? open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC) : -1;
		if (fd >= 0) {
			EQ(write(fd, "!", 1), 1);
			close(fd);
			rung++;
		}
	}
	closedir(d);
	return rung;
}
static double processor_time(clockid_t clock)
{
	struct timespec t;
	EQ(clock_gettime(clock, &t), 0);
	return t.tv_sec + t.tv_nsec / 1e9;
}
static void once(void)
{
	volatile pid_t tid = 0;
	pthread_t t;
	clockid_t clock;
	CHECK(!pthread_create(&t, NULL, sleeper, (void *)&tid));
	while (!tid)
		usleep(100);
	let_it_block(getpid(), tid);
	int rung = ring();
	if (getenv("NETACC_EXPECT"))
		CHECK(rung > 0);
	CHECK(!pthread_getcpuclockid(t, &clock));
	double used = processor_time(clock), since = now();
	usleep(200000);
	used = processor_time(clock) - used;
	since = now() - since;
	if (used > since / 4)
		die("%s: the sleeping thread took %.0f %% of a processor", NAMES[way], 100 * used / since);
	if (way == ACCEPT)
		close(connect_to(port));
	else
		EQ(send(conn[0], "x", 1, 0), 1);
	pthread_join(t, NULL);
}
int main(void)
{
	t_init();
	ep = epoll_create1(0);
	lsn = listen_on(&port);
	pair(conn);
	char b;
	EQ(send(conn[0], "x", 1, 0), 1);
	EQ(recv(conn[1], &b, 1, 0), 1);
	expect_shm(conn[1]);
	EQ(epoll_ctl(ep, EPOLL_CTL_ADD, conn[1], &(struct epoll_event){ .events = EPOLLIN }), 0);
	for (way = 0; way < WAYS; way++)
		once();
	return t_ok("ctl_late_byte");
}
