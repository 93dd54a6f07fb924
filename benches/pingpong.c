/* Round trips of 64 bytes between two processes, each waiting in its own way.
 *
 *   pingpong server MODE CPU
 *   pingpong client MODE CPU PORT COUNT
 *
 * MODE is recv (a blocking recv), epoll, poll or select; CPU is the core to stay
 * on, or -1. The server tells its port and serves one connection after the other. */
#define _GNU_SOURCE
#include "net.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>

enum { SIZE = 64, WORDS = SIZE / 8, WARM_UP = 2000 };

typedef void (*waiter)(int fd);

static int epoll_fd = -1;

static void wait_recv(int fd)
{
	(void)fd; /* recv itself waits */
}

static void wait_epoll(int fd)
{
	struct epoll_event event;
	int ready;

	while ((ready = epoll_wait(epoll_fd, &event, 1, -1)) < 0 && errno == EINTR)
		;
	if (ready < 0)
		die("epoll_wait");
	if (ready != 1 || event.data.fd != fd)
		WRONG("epoll_wait returned %d events, descriptor %d", ready, event.data.fd);
}

static void wait_poll(int fd)
{
	struct pollfd entry = { .fd = fd, .events = POLLIN };
	int ready;

	while ((ready = poll(&entry, 1, -1)) < 0 && errno == EINTR)
		;
	if (ready < 0)
		die("poll");
	if (ready != 1 || !(entry.revents & POLLIN))
		WRONG("poll returned %d, events %#x", ready, (unsigned)entry.revents);
}

static void wait_select(int fd)
{
	fd_set set;
	int ready;

	do {
		FD_ZERO(&set);
		FD_SET(fd, &set);
		ready = select(fd + 1, &set, NULL, NULL, NULL);
	} while (ready < 0 && errno == EINTR);
	if (ready < 0)
		die("select");
	if (ready != 1 || !FD_ISSET(fd, &set))
		WRONG("select returned %d", ready);
}

static waiter waiter_named(const char *mode)
{
	if (!strcmp(mode, "recv"))
		return wait_recv;
	if (!strcmp(mode, "epoll"))
		return wait_epoll;
	if (!strcmp(mode, "poll"))
		return wait_poll;
	if (!strcmp(mode, "select"))
		return wait_select;
	WRONG("%s: expected recv, epoll, poll or select", mode);
	return NULL;
}

static void watch(waiter wait, int fd)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };

	if (wait != wait_epoll)
		return;
	epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (epoll_fd < 0 || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event))
		die("epoll");
}

static void serve(waiter wait, int fd)
{
	uint64_t message[WORDS];

	watch(wait, fd);
	for (;;) {
		wait(fd);
		if (!recv_all(fd, message, SIZE))
			break;
		send_all(fd, message, SIZE);
	}
	close(fd);
	if (epoll_fd >= 0)
		close(epoll_fd);
}

static void round_trip(waiter wait, int fd, uint64_t number)
{
	uint64_t message[WORDS], answer[WORDS];

	for (int i = 0; i < WORDS; i++)
		message[i] = number * WORDS + (uint64_t)i;
	send_all(fd, message, SIZE);
	wait(fd);
	if (!recv_all(fd, answer, SIZE))
		WRONG("the server closed at round trip %llu", (unsigned long long)number);
	if (memcmp(message, answer, SIZE))
		WRONG("wrong bytes in round trip %llu", (unsigned long long)number);
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void report(uint64_t *times, size_t count, uint64_t total)
{
	qsort(times, count, sizeof *times, by_value);
	printf("{\"count\": %zu, \"seconds\": %.6f, \"min_ns\": %llu, \"median_ns\": %llu,"
	       " \"p99_ns\": %llu, \"max_ns\": %llu, \"mean_ns\": %.1f}\n",
	       count, (double)total / 1e9, (unsigned long long)times[0],
	       (unsigned long long)times[count / 2],
	       (unsigned long long)times[count - 1 - count / 100],
	       (unsigned long long)times[count - 1], (double)total / (double)count);
}

/* One clock reading per round trip: the end of one is the start of the next. */
static void measure(waiter wait, int fd, size_t count)
{
	uint64_t *times = malloc(count * sizeof *times);
	uint64_t start, last;

	if (!times)
		die("malloc");
	memset(times, 0, count * sizeof *times); /* no page fault while measuring */
	watch(wait, fd);
	for (size_t i = 0; i < WARM_UP; i++)
		round_trip(wait, fd, i);
	start = last = now_ns();
	for (size_t i = 0; i < count; i++) {
		uint64_t now;

		round_trip(wait, fd, WARM_UP + i);
		now = now_ns();
		times[i] = now - last;
		last = now;
	}
	report(times, count, last - start);
	free(times);
	close(fd);
}

int main(int argc, char **argv)
{
	int server = argc == 4 && !strcmp(argv[1], "server");
	int client = argc == 6 && !strcmp(argv[1], "client");
	waiter wait;

	if (!server && !client)
		WRONG("usage: pingpong server MODE CPU | pingpong client MODE CPU PORT COUNT");
	wait = waiter_named(argv[2]);
	pin_to((int)number_arg(argv[3], -1, CPU_SETSIZE - 1));
	if (server) {
		int listener = listen_and_tell();

		for (;;)
			serve(wait, accept_one(listener));
	}
	int fd = connect_to((int)number_arg(argv[4], 1, 65535));
	if (fd < 0)
		die("connect");
	measure(wait, fd, (size_t)number_arg(argv[5], 1, 1e9));
	return 0;
}
