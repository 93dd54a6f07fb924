/* What the measuring programs share: strict error handling and the few socket
 * calls of an ordinary TCP program. Any short or wrong byte ends the program. */
#ifndef NETACC_BENCH_NET_H
#define NETACC_BENCH_NET_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
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

/* A negative number leaves the placement to the scheduler. */
static inline void pin_to(int cpu)
{
	cpu_set_t set;

	if (cpu < 0)
		return;
	CPU_ZERO(&set);
	CPU_SET((size_t)cpu, &set);
	if (sched_setaffinity(0, sizeof set, &set))
		die("cannot run on cpu %d", cpu);
}

static inline void raise_nofile(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		die("getrlimit");
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit))
		die("setrlimit");
}

static inline void set_nodelay(int fd)
{
	int one = 1;

	if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one))
		die("TCP_NODELAY");
}

static inline struct sockaddr_in loopback(int port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };

	if (inet_pton(AF_INET, "127.0.0.1", &address.sin_addr) != 1)
		die("inet_pton");
	return address;
}

/* Listens on a port the kernel chooses and tells it on stdout. */
static inline int listen_and_tell(void)
{
	struct sockaddr_in address = loopback(0);
	socklen_t size = sizeof address;
	int one = 1;
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0)
		die("socket");
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one))
		die("SO_REUSEADDR");
	if (bind(fd, (struct sockaddr *)&address, sizeof address))
		die("bind");
	if (listen(fd, SOMAXCONN))
		die("listen");
	if (getsockname(fd, (struct sockaddr *)&address, &size))
		die("getsockname");
	printf("{\"port\": %d, \"pid\": %d}\n", ntohs(address.sin_port), getpid());
	fflush(stdout);
	return fd;
}

/* Returns -1 with errno set when there is no descriptor left, so that a caller
 * can say how far it got. */
static inline int connect_to(int port)
{
	struct sockaddr_in address = loopback(port);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	if (fd < 0 && (errno == EMFILE || errno == ENFILE))
		return -1;
	if (fd < 0)
		die("socket");
	while (connect(fd, (struct sockaddr *)&address, sizeof address)) {
		int error = errno;

		if (error == EINTR)
			continue;
		if (error != EMFILE && error != ENFILE && error != EADDRNOTAVAIL)
			die("connect to port %d", port);
		close(fd);
		errno = error;
		return -1;
	}
	set_nodelay(fd);
	return fd;
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
