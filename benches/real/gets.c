/*
 * gets CONNECTIONS SECONDS PORT|PATH: asks a memcached server at 127.0.0.1, or at the path of a UNIX socket, for a value of 1,024
 * bytes, on all connections at once and by one thread that waits in epoll. As soon as a connection has its answer, it asks again.
 * Prints the number of requests, the seconds, and in microseconds the 99th percentile and the longest request.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define VALUE 1024
#define MOST (16u << 20)

static const char get[] = "get key\r\n";
/* The answer is a line, the value, and the end. */
static const size_t answer = sizeof("VALUE key 0 1024\r\n") - 1 + VALUE + sizeof("\r\nEND\r\n") - 1;

struct connection {
	int fd;
	size_t received;
	double asked;
};

static double now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static int connected(const char *where)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(atoi(where)) };
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	int local = where[0] == '/', one = 1;
	int fd = socket(local ? AF_UNIX : AF_INET, SOCK_STREAM, 0);

	snprintf(un.sun_path, sizeof(un.sun_path), "%s", where);
	if (fd < 0 || connect(fd, local ? (void *)&un : (void *)&in, local ? sizeof(un) : sizeof(in)))
		fail("gets: connect");
	if (!local)
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	return fd;
}

static void store(int fd)
{
	char command[VALUE + 64], said[64];
	int head = snprintf(command, sizeof(command), "set key 0 0 %d\r\n", VALUE);

	memset(command + head, 'x', VALUE);
	memcpy(command + head + VALUE, "\r\n", 2);
	if (write(fd, command, head + VALUE + 2) != head + VALUE + 2 || read(fd, said, sizeof(said)) != 8 || memcmp(said, "STORED\r\n", 8))
		fail("gets: set");
}

static void ask(struct connection *one)
{
	one->received = 0;
	one->asked = now_us();
	if (write(one->fd, get, sizeof(get) - 1) != sizeof(get) - 1)
		fail("gets: write");
}

/* Whether the answer is complete. */
static int receive(struct connection *one)
{
	char part[4096];
	ssize_t size = read(one->fd, part, sizeof(part));

	if (size <= 0)
		fail("gets: read");
	one->received += size;
	if (one->received > answer || memchr(part, 'R', size)) {
		fprintf(stderr, "gets: unexpected answer: %.*s\n", (int)size, part);
		exit(1);
	}
	return one->received == answer;
}

static int ascending(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	struct connection *all;
	float *times = malloc(MOST * sizeof(*times));
	double begin, now;
	unsigned count = 0;
	int number, epoll = epoll_create1(0);

	if (argc != 4 || (number = atoi(argv[1])) < 1) {
		fprintf(stderr, "usage: gets CONNECTIONS SECONDS PORT|PATH\n");
		return 2;
	}
	all = calloc(number, sizeof(*all));
	for (int i = 0; i < number; i++) {
		struct epoll_event event = { .events = EPOLLIN, .data.ptr = &all[i] };

		all[i].fd = connected(argv[3]);
		if (i == 0)
			store(all[i].fd);
		if (epoll_ctl(epoll, EPOLL_CTL_ADD, all[i].fd, &event))
			fail("gets: epoll_ctl");
	}
	begin = now = now_us();
	for (int i = 0; i < number; i++)
		ask(&all[i]);
	while (now < begin + atof(argv[2]) * 1e6 && count < MOST - 64) {
		struct epoll_event ready[64];
		int found = epoll_wait(epoll, ready, 64, 20000);

		if (found <= 0) {
			fprintf(stderr, "gets: no answer for 20 seconds\n");
			return 1;
		}
		for (int i = 0; i < found; i++) {
			struct connection *one = ready[i].data.ptr;

			if (!receive(one))
				continue;
			now = now_us();
			times[count++] = now - one->asked;
			ask(one);
		}
	}
	if (!count)
		return 1;
	qsort(times, count, sizeof(*times), ascending);
	printf("%u %.6f %.3f %.3f\n", count, (now - begin) / 1e6, times[(unsigned)(0.99 * (count - 1))], times[count - 1]);
	return 0;
}
