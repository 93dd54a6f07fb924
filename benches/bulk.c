/* One stream whose every byte is compared on arrival.
 *
 *   bulk server
 *   bulk client PORT SECONDS CHUNK
 *
 * The stream repeats random bytes with a prime period, so a byte lost, doubled or
 * moved by any buffer size shows up. The server answers with the number of bytes. */
#define _GNU_SOURCE
#include "net.h"

enum { PERIOD = 1048573, MAX_CHUNK = 1 << 19 };

/* Longer than the period by one chunk: no piece of the stream has to wrap. */
static unsigned char pattern[PERIOD + MAX_CHUNK];
static unsigned char buffer[MAX_CHUNK];

static void fill_pattern(void)
{
	uint64_t x = 0x9e3779b97f4a7c15u;

	for (size_t i = 0; i < PERIOD; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		pattern[i] = (unsigned char)(x >> 32);
	}
	memcpy(pattern + PERIOD, pattern, MAX_CHUNK);
}

static void check(uint64_t position, size_t size)
{
	const unsigned char *expected = pattern + position % PERIOD;

	if (!memcmp(buffer, expected, size))
		return;
	for (size_t i = 0; i < size; i++)
		if (buffer[i] != expected[i])
			WRONG("byte %llu of the stream is %02x instead of %02x",
			      (unsigned long long)(position + i), buffer[i], expected[i]);
}

static void serve(int fd)
{
	uint64_t total = 0;

	for (;;) {
		ssize_t got = recv(fd, buffer, 128 * 1024, 0);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			die("recv");
		if (got == 0)
			break;
		check(total, (size_t)got);
		total += (uint64_t)got;
	}
	send_all(fd, &total, sizeof total);
	close(fd);
}

static void transfer(int fd, double seconds, size_t chunk)
{
	uint64_t total = 0, arrived, start = now_ns();
	uint64_t end = start + (uint64_t)(seconds * 1e9);

	do {
		send_all(fd, pattern + total % PERIOD, chunk);
		total += chunk;
	} while (now_ns() < end);
	if (shutdown(fd, SHUT_WR))
		die("shutdown");
	if (!recv_all(fd, &arrived, sizeof arrived))
		WRONG("the server closed without an answer");
	if (arrived != total)
		WRONG("sent %llu bytes, %llu arrived", (unsigned long long)total,
		      (unsigned long long)arrived);
	printf("{\"bytes\": %llu, \"seconds\": %.6f}\n", (unsigned long long)total,
	       (double)(now_ns() - start) / 1e9);
	close(fd);
}

int main(int argc, char **argv)
{
	fill_pattern();
	if (argc == 2 && !strcmp(argv[1], "server")) {
		int listener = listen_and_tell();

		for (;;)
			serve(accept_one(listener));
	}
	if (argc != 5 || strcmp(argv[1], "client"))
		WRONG("usage: bulk server | bulk client PORT SECONDS CHUNK");
	int fd = connect_to((int)number_arg(argv[2], 1, 65535));
	if (fd < 0)
		die("connect");
	transfer(fd, number_arg(argv[3], 0.001, 3600), (size_t)number_arg(argv[4], 1, MAX_CHUNK));
	return 0;
}
