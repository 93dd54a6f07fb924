// Workers that each serve one connection until its client closes it: a connect must not wait at a busy worker while another
// one is idle. Every client keeps its connections until all of them were answered, so a connect that waits for a busy
// worker waits for ever.
#include "t.h"

#define WORKERS 4
#define ROUNDS 12

enum how { ACCEPT, POLL, EPOLL, HOWS };

static int lsn, port;
static pid_t workers[WORKERS];
// Gets a byte for each connection that was asked something.
static int served[2];

static void wait_for(enum how how, int set)
{
	struct pollfd p = {lsn, POLLIN, 0};
	struct epoll_event e;
	if (how == POLL)
		poll(&p, 1, -1);
	else if (how == EPOLL)
		epoll_wait(set, &e, 1, -1);
}

static void work(enum how how)
{
	int set = -1;
	if (how != ACCEPT)
		EQ(fcntl(lsn, F_SETFL, O_NONBLOCK), 0);
	if (how == EPOLL) {
		struct epoll_event e = {.events = EPOLLIN};
		CHECK((set = epoll_create1(0)) >= 0);
		EQ(epoll_ctl(set, EPOLL_CTL_ADD, lsn, &e), 0);
	}
	for (;;) {
		wait_for(how, set);
		int s = accept(lsn, NULL, NULL);
		if (s < 0) {
			CHECK(errno == EAGAIN);
			continue;
		}
		EQ(fcntl(s, F_SETFL, 0), 0);
		char c;
		while (read(s, &c, 1) == 1) {
			EQ(write(served[1], &c, 1), 1);
			EQ(write(s, &c, 1), 1);
		}
		close(s);
	}
}

static void begin(enum how how)
{
	lsn = listen_on(&port);
	for (int i = 0; i < WORKERS; i++)
		if (!(workers[i] = fork_child())) {
			work(how);
			_exit(1);
		}
	close(lsn);
}

static void end(void)
{
	for (int i = 0; i < WORKERS; i++) {
		kill(workers[i], SIGKILL);
		EQ(waitpid(workers[i], NULL, 0), workers[i]);
	}
}

static int connect_without_waiting(void)
{
	struct sockaddr_in a = {AF_INET, htons(port), {htonl(INADDR_LOOPBACK)}, {0}};
	int s = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK(s >= 0);
	CHECK(!connect(s, (void *)&a, sizeof a) || errno == EINPROGRESS);
	struct pollfd p = {s, POLLOUT, 0};
	EQ(poll(&p, 1, -1), 1);
	EQ(fcntl(s, F_SETFL, 0), 0);
	return s;
}

static void ask(int s)
{
	EQ(write(s, "x", 1), 1);
	char c;
	EQ(read(s, &c, 1), 1);
	EQ(read(served[0], &c, 1), 1);
}

// One process, which connects `n` times at once, or each time after it was answered.
static void one_client(int n, int at_once)
{
	int s[WORKERS];
	for (int i = 0; i < n; i++) {
		s[i] = connect_without_waiting();
		if (!at_once)
			ask(s[i]);
	}
	for (int i = 0; at_once && i < n; i++)
		ask(s[i]);
	for (int i = 0; i < n; i++)
		close(s[i]);
}

// As many processes as there are workers, each with one connection, all of which are open at the same time.
static void many_clients(void)
{
	int done[2], go[2];
	EQ(pipe(done), 0);
	EQ(pipe(go), 0);
	pid_t clients[WORKERS];
	for (int i = 0; i < WORKERS; i++)
		if (!(clients[i] = fork_child())) {
			char c;
			close(go[1]);
			int s = connect_without_waiting();
			ask(s);
			EQ(write(done[1], "x", 1), 1);
			EQ(read(go[0], &c, 1), 0);
			_exit(0);
		}
	for (int i = 0; i < WORKERS; i++) {
		char c;
		EQ(read(done[0], &c, 1), 1);
	}
	close(go[1]);
	for (int i = 0; i < WORKERS; i++) {
		int status;
		EQ(waitpid(clients[i], &status, 0), clients[i]);
		EQ(status, 0);
	}
	close(go[0]);
	close(done[0]);
	close(done[1]);
}

// A client that, once it has written, waits for something else than its connections.
static void silent_client(void)
{
	int s[WORKERS];
	char c;
	for (int i = 0; i < WORKERS; i++)
		s[i] = connect_without_waiting();
	for (int i = 0; i < WORKERS; i++)
		EQ(write(s[i], "x", 1), 1);
	for (int i = 0; i < WORKERS; i++)
		EQ(read(served[0], &c, 1), 1);
	for (int i = 0; i < WORKERS; i++)
		close(s[i]);
}

int main(void)
{
	t_init();
	EQ(pipe(served), 0);
	for (enum how how = ACCEPT; how < HOWS; how++) {
		begin(how);
		for (int i = 0; i < ROUNDS; i++) {
			one_client(WORKERS, 0);
			one_client(WORKERS, 1);
			many_clients();
			// A worker that comes back to its events soon keeps what is queued there.
			if (how == ACCEPT)
				silent_client();
		}
		end();
	}
	return t_ok("prefork_idle");
}
