/* Preloaded: TCP sockets become the kernel's SMC sockets, which go by TCP themselves where the other end has no SMC. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

enum { SMC_IPV4, SMC_IPV6, TYPE = 0xf };

int socket(int family, int type, int protocol)
{
	int (*next)(int, int, int) = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
	int tcp = (type & TYPE) == SOCK_STREAM && (protocol == 0 || protocol == IPPROTO_TCP);

	if (tcp && family == AF_INET)
		return next(AF_SMC, type, SMC_IPV4);
	if (tcp && family == AF_INET6)
		return next(AF_SMC, type, SMC_IPV6);
	return next(family, type, protocol);
}
