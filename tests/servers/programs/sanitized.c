// sanitized PORT: sends to an echo server and compares, in pieces, by blocking calls and by epoll. It is built with
// AddressSanitizer.
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static int one(int port, size_t n)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int s = socket(AF_INET, SOCK_STREAM, 0), ep = epoll_create1(0), ok = 1;
	struct epoll_event ev = { .events = EPOLLIN };
	unsigned char *out = malloc(n), *in = malloc(n);
	for (size_t i = 0; i < n; i++)
		out[i] = i * 2654435761u >> 11;
	if (connect(s, (struct sockaddr *)&a, sizeof a) || epoll_ctl(ep, EPOLL_CTL_ADD, s, &ev))
		return 0;
	for (size_t sent = 0, got = 0; ok && got < n;) {
		size_t piece = n - sent < 20000 ? n - sent : 20000;
		ok = send(s, out + sent, piece, 0) == (ssize_t)piece;
		sent += piece;
		while (ok && got < sent) {
			ssize_t r = epoll_wait(ep, &ev, 1, 30000) == 1 ? recv(s, in + got, sent - got, 0) : -1;
			ok = r > 0;
			got += r;
		}
	}
	ok = ok && !memcmp(in, out, n);
	close(s), close(ep);
	free(out), free(in);
	return ok;
}

int main(int argc, char **argv)
{
	for (int i = 1; i <= 20; i++)
		if (argc < 2 || !one(atoi(argv[1]), i * 7000))
			return puts("wrong"), 1;
	puts("fine");
	return 0;
}
