/* What the measuring program uses: strict error handling and the few socket
 * calls of an ordinary TCP program. Any short or wrong byte ends the program. */
#ifndef NETACC_BENCH_NET_H
#define NETACC_BENCH_NET_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static inline void die(const char *format, ...)
{
	int error = errno;
	va_list args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	if (error)
		fprintf(stderr, ": %s", strerror(error));
	fputc('\n', stderr);
	exit(1);
}

/* For mistakes in the data, where errno says nothing. */
#define WRONG(...) (errno = 0, die(__VA_ARGS__))

static inline uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline double number_arg(const char *text, double least, double most)
{
	char *end;
	double value = strtod(text, &end);

	if (end == text || *end || !(value >= least && value <= most))
		WRONG("%s: expected a number from %g to %g", text, least, most);
	return value;
}

static inline void set_nodelay(int fd)
{
	int one = 1;

	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one))
		die("TCP_NODELAY");
}

static inline int accept_one(int listener)
{
	for (;;) {
		int fd = accept(listener, NULL, NULL);

		if (fd >= 0) {
			set_nodelay(fd);
			return fd;
		}
		if (errno != EINTR && errno != ECONNABORTED)
			die("accept");
	}
}

static inline void send_all(int fd, const void *data, size_t size)
{
	const char *at = data;

	while (size) {
		ssize_t sent = send(fd, at, size, MSG_NOSIGNAL);

		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0)
			die("send");
		if (sent == 0 || (size_t)sent > size)
			WRONG("send of %zu bytes returned %zd", size, sent);
		at += sent;
		size -= (size_t)sent;
	}
}

/* 0 when the peer has closed before the first byte, 1 when all bytes are there. */
static inline int recv_all(int fd, void *data, size_t size)
{
	size_t got = 0;

	while (got < size) {
		ssize_t part = recv(fd, (char *)data + got, size - got, 0);

		if (part < 0 && errno == EINTR)
			continue;
		if (part < 0)
			die("recv");
		if ((size_t)part > size - got)
			WRONG("recv of %zu bytes returned %zd", size - got, part);
		if (part == 0 && got == 0)
			return 0;
		if (part == 0)
			WRONG("the connection ended after %zu of %zu bytes", got, size);
		got += (size_t)part;
	}
	return 1;
}

#endif
