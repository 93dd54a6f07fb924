// A process binds a socket, and three others that have it by a fork or by SCM_RIGHTS each call listen(2) and accept: of many
// connects at once each of them gets its share, and one that is idle takes what comes.
#include "t.h"
enum { W = 3, C = 30 };
static int port, got[W];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void worker(int l, int me, int up)
{
	int e = epoll_create1(0);
	struct epoll_event ev = { EPOLLIN, { .fd = l } };
	EQ(listen(l, 128), 0);
	nonblock(l);
	EQ(epoll_ctl(e, EPOLL_CTL_ADD, l, &ev), 0);
	EQ(epoll_wait(e, &ev, 1, 0), 0);
	EQ(write(up, "w", 1), 1);
	for (;;) {
		char b = '0' + me, ask;
		epoll_wait(e, &ev, 1, -1);
		int s = accept(l, NULL, NULL);
		if (s < 0 && errno == EAGAIN)
			continue;
		CHECK(s >= 0);
		fcntl(s, F_SETFL, O_RDWR);
		recv_all(s, &ask, 1);
		if (ask == 's') // it takes a while
			usleep(40000);
		send_all(s, &b, 1);
		close(s);
	}
}
static int ask(char how, int fast)
{
	char b;
	int c = connect_to(port);
	if (fast)
		expect_shm(c);
	send_all(c, &how, 1);
	recv_all(c, &b, 1);
	CHECK(b >= '0' && b < '0' + W);
	EQ(recv(c, &how, 1, 0), 0);
	close(c);
	return b - '0';
}
static void *client(void *unused)
{
	int who = ask('s', 0);
	pthread_mutex_lock(&lock);
	got[who]++;
	pthread_mutex_unlock(&lock);
	return unused;
}
int main(void)
{
	t_init();
	for (int passes = 0; passes < 2; passes++) {
		struct sockaddr_in a = addr4(0);
		int l = -1, up[2], u[W][2];
		pid_t w[W];
		char b;
		pthread_t t[C];
		EQ(pipe(up), 0);
		for (int turn = 0; turn < 2; turn++) {
			if (turn == passes) {
				l = socket(AF_INET, SOCK_STREAM, 0);
				EQ(bind(l, (struct sockaddr *)&a, sizeof a), 0);
				port = port_of(l);
				continue;
			}
			for (int i = 0; i < W; i++) {
				EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, u[i]), 0);
				w[i] = fork_child();
				if (!w[i])
					worker(passes ? take_fd(u[i][1]) : l, i, up[1]);
			}
		}
		for (int i = 0; passes && i < W; i++)
			pass_fd(u[i][0], l);
		for (int i = 0; i < W; i++)
			EQ(read(up[0], &b, 1), 1);
		close(l);
		for (int i = 0; i < W; i++)
			ask('s', 0);
		memset(got, 0, sizeof got);
		for (int i = 0; i < C; i++)
			EQ(pthread_create(&t[i], NULL, client, NULL), 0);
		for (int i = 0; i < C; i++)
			pthread_join(t[i], NULL);
		for (int i = 0; i < W; i++)
			CHECK(got[i] >= C / W / 3);
		usleep(300000); // until no connect that went by TCP is remembered
		for (int i = 0; i < 10; i++)
			ask('q', i > 5);
		for (int i = 0; i < W; i++) {
			kill(w[i], SIGKILL);
			reap_killed(w[i]);
			close(u[i][0]), close(u[i][1]);
		}
		close(up[0]), close(up[1]);
	}
	return t_ok("workers_listen");
}
