/* oneshot PORT: connects to 127.0.0.1, makes one HTTP request, reads the answer to its end, and ends. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char request[] = "GET /page HTTP/1.0\r\n\r\n";

int main(int argc, char **argv)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	char answer[65536];
	size_t size = 0;
	ssize_t part;
	int fd;

	if (argc != 2) {
		fprintf(stderr, "usage: oneshot PORT\n");
		return 2;
	}
	to.sin_port = htons(atoi(argv[1]));
	fd = socket(AF_INET, SOCK_STREAM, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof(to))) {
		perror("oneshot: connect");
		return 1;
	}
	if (write(fd, request, sizeof(request) - 1) != sizeof(request) - 1) {
		perror("oneshot: write");
		return 1;
	}
	while (size < sizeof(answer) - 1 && (part = read(fd, answer + size, sizeof(answer) - 1 - size)) > 0)
		size += part;
	answer[size] = 0;
	close(fd);
	if (!strstr(answer, " 200 ")) {
		fprintf(stderr, "oneshot: no good answer, %zu bytes\n", size);
		return 1;
	}
	return 0;
}
