// The host to which the tests connect: this one by loopback, or by the addresses T_ADDRESS and T_ADDRESS6, to which the
// route leads over a network (tests/rdma/test_conformance.py).
#ifndef HOST_H
#define HOST_H
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>

static inline int by_network(void) { return getenv("T_ADDRESS") != NULL; }

static inline in_addr_t host4(void)
{
	const char *a = getenv("T_ADDRESS");
	return a ? inet_addr(a) : htonl(INADDR_LOOPBACK);
}

static inline struct in6_addr host6(void)
{
	struct in6_addr at = IN6ADDR_LOOPBACK_INIT;
	const char *a = getenv("T_ADDRESS6");
	if (a)
		inet_pton(AF_INET6, a, &at);
	return at;
}

// A listener is found by other hosts from when its program first waits on it: a client of the same program may be sooner.
static inline void to_be_found(int listener)
{
	struct pollfd p = { listener, POLLIN, 0 };
	if (by_network())
		poll(&p, 1, 0);
}

// How many times slower than usual the machine is: what takes time may take that many times longer.
static inline int patience(void)
{
	const char *p = getenv("T_PATIENCE");
	int n = p ? atoi(p) : 1;
	return n > 0 ? n : 1;
}
#endif
