// A program that makes one connection, asks once and ends: once [PORT]. Without a port it ends at once. With `serve` it is
// the server, which says its port: once serve.
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int serve(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t len = sizeof at;
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(listener, (struct sockaddr *)&at, len) || listen(listener, 64) || getsockname(listener, (struct sockaddr *)&at, &len))
		return 1;
	printf("%d\n", ntohs(at.sin_port));
	fflush(stdout);
	for (;;) {
		char text[64];
		ssize_t n;
		int fd = accept(listener, NULL, NULL);
		while ((n = recv(fd, text, sizeof text, 0)) > 0)
			send(fd, text, n, MSG_NOSIGNAL);
		close(fd);
	}
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return 0;
	if (!strcmp(argv[1], "serve"))
		return serve();
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr = { htonl(INADDR_LOOPBACK) } };
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	char text[64];
	if (connect(fd, (struct sockaddr *)&at, sizeof at) || send(fd, "hello", 5, 0) != 5 || recv(fd, text, sizeof text, 0) != 5)
		return 1;
	return close(fd) != 0;
}
