/* An epoll echo server and a client with many connections of which few are active.
 *
 *   manyconn server
 *   manyconn client PORT
 *
 * The client reads commands and answers each with one line of JSON:
 *   open N           open N more connections, or as many as there are descriptors for
 *   each SIZE        one message of SIZE bytes there and back on every connection
 *   run SECONDS K    64-byte messages on K connections, the others being idle
 *   quit */
#define _GNU_SOURCE
#include "net.h"

#include <fcntl.h>
#include <sys/epoll.h>

enum { SIZE = 64, MAX_MESSAGE = 1 << 20, EVENTS = 256 };

static int epoll_fd;
static char buffer[MAX_MESSAGE];

static void watch(int operation, int fd, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.fd = fd };

	if (epoll_ctl(epoll_fd, operation, fd, &event))
		die("epoll_ctl");
}

static int wait_events(struct epoll_event *events)
{
	for (;;) {
		int ready = epoll_wait(epoll_fd, events, EVENTS, -1);

		if (ready > 0)
			return ready;
		if (ready == 0)
			WRONG("epoll_wait without a timeout returned nothing");
		if (errno != EINTR)
			die("epoll_wait");
	}
}

static size_t descriptor_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		die("getrlimit");
	return limit.rlim_cur > 1 << 20 ? 1 << 20 : (size_t)limit.rlim_cur;
}

/* Bytes the peer did not take yet; no memory while there are none. */
struct backlog {
	char *data;
	size_t at, size;
};

static struct backlog *backlogs;
static size_t limit;
static unsigned long accepted;

static void accept_ready(int listener)
{
	int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

	if (fd < 0 && (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED))
		return;
	if (fd < 0)
		die("accept after %lu connections", accepted);
	if ((size_t)fd >= limit)
		WRONG("descriptor %d is above the limit of %zu", fd, limit);
	accepted++;
	set_nodelay(fd);
	watch(EPOLL_CTL_ADD, fd, EPOLLIN);
}

static void drop(int fd)
{
	free(backlogs[fd].data);
	backlogs[fd] = (struct backlog){ 0 };
	close(fd);
}

/* The number of bytes the socket took. */
static size_t send_some(int fd, const char *data, size_t size)
{
	size_t done = 0;

	while (done < size) {
		ssize_t sent = send(fd, data + done, size - done, MSG_NOSIGNAL);

		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0 && errno == EAGAIN)
			break;
		if (sent < 0)
			die("send");
		done += (size_t)sent;
	}
	return done;
}

static void echo(int fd)
{
	ssize_t got = recv(fd, buffer, sizeof buffer, 0);
	size_t done;

	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (got < 0 && errno != ECONNRESET)
		die("recv");
	if (got <= 0) {
		drop(fd);
		return;
	}
	done = send_some(fd, buffer, (size_t)got);
	if (done == (size_t)got)
		return;
	backlogs[fd].size = (size_t)got - done;
	backlogs[fd].data = malloc(backlogs[fd].size);
	if (!backlogs[fd].data)
		die("malloc");
	memcpy(backlogs[fd].data, buffer + done, backlogs[fd].size);
	watch(EPOLL_CTL_MOD, fd, EPOLLOUT);
}

static void flush_backlog(int fd)
{
	struct backlog *rest = &backlogs[fd];

	rest->at += send_some(fd, rest->data + rest->at, rest->size - rest->at);
	if (rest->at < rest->size)
		return;
	free(rest->data);
	*rest = (struct backlog){ 0 };
	watch(EPOLL_CTL_MOD, fd, EPOLLIN);
}

static void serve(void)
{
	struct epoll_event events[EVENTS];
	int listener = listen_and_tell();

	if (fcntl(listener, F_SETFL, O_NONBLOCK))
		die("fcntl");
	backlogs = calloc(limit, sizeof *backlogs);
	if (!backlogs)
		die("calloc");
	watch(EPOLL_CTL_ADD, listener, EPOLLIN);
	for (;;) {
		int ready = wait_events(events);

		for (int i = 0; i < ready; i++) {
			int fd = events[i].data.fd;

			if (fd == listener)
				accept_ready(fd);
			else if (backlogs[fd].data)
				flush_backlog(fd);
			else
				echo(fd);
		}
	}
}

static int *connections;
static size_t opened;

static void open_connections(int port, size_t count)
{
	uint64_t start = now_ns();
	const char *why = "";
	size_t before = opened;

	while (opened < before + count) {
		int fd = opened < limit ? connect_to(port) : (errno = EMFILE, -1);

		if (fd < 0) {
			why = strerror(errno);
			break;
		}
		watch(EPOLL_CTL_ADD, fd, EPOLLIN);
		connections[opened++] = fd;
	}
	printf("{\"opened\": %zu, \"asked\": %zu, \"seconds\": %.6f, \"why\": \"%s\"}\n",
	       opened - before, count, (double)(now_ns() - start) / 1e9, why);
}

static void each(size_t size)
{
	static char message[MAX_MESSAGE];
	uint64_t start = now_ns();

	for (size_t i = 0; i < opened; i++) {
		for (size_t j = 0; j < size; j++)
			message[j] = (char)(i * 31 + j * 7 + j / 251);
		send_all(connections[i], message, size);
		if (!recv_all(connections[i], buffer, size))
			WRONG("the server closed connection %zu", i);
		if (memcmp(message, buffer, size))
			WRONG("wrong bytes on connection %zu", i);
	}
	printf("{\"answered\": %zu, \"seconds\": %.6f}\n", opened, (double)(now_ns() - start) / 1e9);
}

static void request(int fd, uint64_t number)
{
	uint64_t message[SIZE / 8];

	for (size_t i = 0; i < SIZE / 8; i++)
		message[i] = number ^ ((uint64_t)fd << 40) ^ (i << 56);
	send_all(fd, message, SIZE);
}

/* Every connection counts its own messages, so a mixed-up answer is noticed. */
static void answer(int fd, uint64_t number)
{
	uint64_t message[SIZE / 8];

	if (!recv_all(fd, message, SIZE))
		WRONG("the server closed descriptor %d", fd);
	for (size_t i = 0; i < SIZE / 8; i++)
		if (message[i] != (number ^ ((uint64_t)fd << 40) ^ (i << 56)))
			WRONG("wrong bytes in answer %llu on descriptor %d",
			      (unsigned long long)number, fd);
}

static void run(double seconds, size_t active)
{
	static uint64_t *sequence;
	struct epoll_event events[EVENTS];
	uint64_t requests = 0, start, end, now;
	size_t waiting = active;

	if (!opened || active > opened)
		WRONG("%zu active connections of %zu", active, opened);
	if (!sequence)
		sequence = calloc(limit, sizeof *sequence);
	if (!sequence)
		die("calloc");
	now = start = now_ns();
	end = start + (uint64_t)(seconds * 1e9);
	for (size_t i = 0; i < active; i++) {
		int fd = connections[i * (opened / active)];

		request(fd, ++sequence[fd]);
	}
	while (waiting) {
		int ready = wait_events(events);

		for (int i = 0; i < ready; i++) {
			int fd = events[i].data.fd;

			answer(fd, sequence[fd]);
			requests++;
			now = now_ns();
			if (now < end)
				request(fd, ++sequence[fd]);
			else
				waiting--;
		}
	}
	printf("{\"requests\": %llu, \"seconds\": %.6f, \"connections\": %zu, \"active\": %zu}\n",
	       (unsigned long long)requests, (double)(now - start) / 1e9, opened, active);
}

static void obey(int port)
{
	char line[128];

	connections = calloc(limit, sizeof *connections);
	if (!connections)
		die("calloc");
	while (fgets(line, sizeof line, stdin)) {
		size_t count;
		double seconds;

		if (sscanf(line, "open %zu", &count) == 1)
			open_connections(port, count);
		else if (sscanf(line, "each %zu", &count) == 1 && count && count <= MAX_MESSAGE)
			each(count);
		else if (sscanf(line, "run %lf %zu", &seconds, &count) == 2 && count)
			run(seconds, count);
		else if (!strcmp(line, "quit\n"))
			return;
		else
			WRONG("unknown command: %s", line);
		fflush(stdout);
	}
}

int main(int argc, char **argv)
{
	int server = argc == 2 && !strcmp(argv[1], "server");

	if (!server && (argc != 3 || strcmp(argv[1], "client")))
		WRONG("usage: manyconn server | manyconn client PORT");
	raise_nofile();
	limit = descriptor_limit();
	epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (epoll_fd < 0)
		die("epoll_create1");
	if (server)
		serve();
	obey((int)number_arg(argv[2], 1, 65535));
	return 0;
}
