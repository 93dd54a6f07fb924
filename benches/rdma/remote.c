/* A server and a client on two hosts, for what takes one connection at a time.
 *
 *   far server IP PORT
 *   far client IP PORT
 *
 * The client gets commands as lines on its standard input, and answers each with a line of JSON, so that the program
 * that counts can look exactly before and after:
 *
 *   connect COUNT       COUNT connections one after the other, each with one byte there and back
 *   hold COUNT          COUNT connections, of which each stays open until the last one is there
 *   open                the connection for what follows
 *   rtt SIZE COUNT      SIZE bytes there and back, COUNT times, by a blocking recv
 *   stream SIZE COUNT   COUNT sends of SIZE bytes, then one byte back
 *   quit                ends in good order */
#define _GNU_SOURCE
#include "net.h"

enum { MAX_SIZE = 1 << 18, MAX_COUNT = 1000000, MAX_HELD = 100 };
enum { ECHO, SINK };

/* What the client says first of each job. A connection that is to be kept is not listened to any more, and stays open
 * until one comes that is not: so a server of one thread, whose work is not in the figures, can have several. */
struct job {
	uint32_t what, size, count, keep;
};

static unsigned char buffer[MAX_SIZE];
static uint64_t times[MAX_COUNT], other_times[MAX_COUNT];

static struct sockaddr_in address(const char *ip, const char *port)
{
	struct sockaddr_in found = { .sin_family = AF_INET, .sin_port = htons((uint16_t)number_arg(port, 1, 65535)) };

	if (inet_pton(AF_INET, ip, &found.sin_addr) != 1)
		WRONG("%s: expected an IPv4 address", ip);
	return found;
}

static void serve(int fd)
{
	static int kept[MAX_HELD];
	static int kept_count;
	struct job job;

	while (recv_all(fd, &job, sizeof job)) {
		if (job.size > MAX_SIZE)
			WRONG("a job of %u bytes", job.size);
		for (uint32_t i = 0; i < job.count; i++) {
			if (!recv_all(fd, buffer, job.size))
				WRONG("the client closed at %u of %u", i, job.count);
			if (job.what == ECHO)
				send_all(fd, buffer, job.size);
		}
		if (job.what == SINK)
			send_all(fd, buffer, 1);
		if (job.keep && kept_count < MAX_HELD) {
			kept[kept_count++] = fd;
			return;
		}
		while (kept_count)
			close(kept[--kept_count]);
	}
	close(fd);
}

static void run_server(struct sockaddr_in where)
{
	int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one))
		die("socket");
	if (bind(fd, (struct sockaddr *)&where, sizeof where) || listen(fd, 64))
		die("listen");
	puts("ready");
	fflush(stdout);
	for (;;)
		serve(accept_one(fd));
}

static int fresh_socket(void)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0)
		die("socket");
	return fd;
}

static int dial(int fd, struct sockaddr_in where)
{
	if (connect(fd, (struct sockaddr *)&where, sizeof where))
		die("connect");
	return fd;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static uint64_t median(uint64_t *list, uint32_t count)
{
	qsort(list, count, sizeof *list, by_value);
	return list[count / 2];
}

static void round_trip(int fd, uint32_t size, uint32_t number)
{
	memset(buffer, (int)number, size);
	send_all(fd, buffer, size);
	memset(buffer, (int)~number, size);
	if (!recv_all(fd, buffer, size))
		WRONG("the server closed at round trip %u", number);
	if (buffer[0] != (unsigned char)number || buffer[size - 1] != (unsigned char)number)
		WRONG("wrong bytes in round trip %u", number);
}

static void rtt(int fd, uint32_t size, uint32_t count)
{
	struct job job = { ECHO, size, count, 0 };
	uint64_t start, last;

	send_all(fd, &job, sizeof job);
	start = last = now_ns();
	for (uint32_t i = 0; i < count; i++) {
		round_trip(fd, size, i);
		times[i] = now_ns() - last;
		last += times[i];
	}
	printf("{\"mean_us\": %.3f, \"median_us\": %.3f}\n", (double)(last - start) / 1e3 / count,
	       (double)median(times, count) / 1e3);
}

static void stream(int fd, uint32_t size, uint32_t count)
{
	struct job job = { SINK, size, count, 0 };
	uint64_t start;

	send_all(fd, &job, sizeof job);
	start = now_ns();
	for (uint32_t i = 0; i < count; i++)
		send_all(fd, buffer, size);
	if (!recv_all(fd, buffer, 1))
		WRONG("the server closed instead of an answer");
	printf("{\"mb_s\": %.3f}\n", (double)size * count * 1e3 / (double)(now_ns() - start));
}

static void connects(struct sockaddr_in where, uint32_t count, int hold)
{
	struct job job = { ECHO, 1, 1, (uint32_t)hold };
	int held[MAX_HELD];

	for (uint32_t i = 0; i < count; i++) {
		/* What comes before the call is not the connect's. */
		int fd = fresh_socket();
		uint64_t start = now_ns();

		dial(fd, where);
		times[i] = now_ns() - start;
		send_all(fd, &job, sizeof job);
		round_trip(fd, 1, i);
		other_times[i] = now_ns() - start;
		if (hold)
			held[i] = fd;
		else
			close(fd);
	}
	for (uint32_t i = 0; hold && i < count; i++)
		close(held[i]);
	printf("{\"connect_us\": %.3f, \"answer_us\": %.3f}\n", (double)median(times, count) / 1e3,
	       (double)median(other_times, count) / 1e3);
}

static void run_client(struct sockaddr_in where)
{
	char line[100], what[20];
	int fd = -1;

	while (fgets(line, sizeof line, stdin)) {
		uint32_t a = 0, b = 0;
		int found = sscanf(line, "%19s %u %u", what, &a, &b);

		if (found == 1 && !strcmp(what, "open")) {
			fd = dial(fresh_socket(), where);
			set_nodelay(fd);
			puts("{}");
		} else if (found == 1 && !strcmp(what, "quit")) {
			return;
		} else if (found == 2 && !strcmp(what, "connect") && a && a <= MAX_COUNT) {
			connects(where, a, 0);
		} else if (found == 2 && !strcmp(what, "hold") && a && a <= MAX_HELD) {
			connects(where, a, 1);
		} else if (found == 3 && !strcmp(what, "rtt") && a && a <= MAX_SIZE && b && b <= MAX_COUNT) {
			rtt(fd, a, b);
		} else if (found == 3 && !strcmp(what, "stream") && a && a <= MAX_SIZE && b) {
			stream(fd, a, b);
		} else {
			WRONG("not understood: %s", line);
		}
		fflush(stdout);
	}
}

int main(int argc, char **argv)
{
	if (argc != 4 || (strcmp(argv[1], "server") && strcmp(argv[1], "client")))
		WRONG("usage: far server|client IP PORT");
	signal(SIGPIPE, SIG_IGN);
	/* Memory that is touched for the first time is not a connection's to pay: a huge page takes as long as forty connects. */
	memset(buffer, 1, sizeof buffer);
	times[0] = other_times[0] = 0;
	if (!strcmp(argv[1], "server"))
		run_server(address(argv[2], argv[3]));
	else
		run_client(address(argv[2], argv[3]));
	return 0;
}
