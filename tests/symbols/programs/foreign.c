// Calls of many kinds, for programs of any libc: what they print and return is the same with the library and without it.
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static void *echo(void *at)
{
	int fd = *(int *)at;
	char data[4096];
	for (ssize_t n; (n = read(fd, data, sizeof data)) > 0;)
		write(fd, data, n);
	return NULL;
}

static void on_alarm(int signal) { write(1, "alarm\n", 6); }

int main(int argc, char **argv)
{
	if (argc > 1)
		return puts("executed") < 0;
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t n = sizeof a;
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	printf("bind %d, ", bind(listener, (struct sockaddr *)&a, sizeof a));
	printf("listen %d\n", listen(listener, 5));
	getsockname(listener, (struct sockaddr *)&a, &n);
	int client = socket(AF_INET, SOCK_STREAM, 0);
	printf("connect %d\n", connect(client, (struct sockaddr *)&a, n));
	int server = accept(listener, NULL, NULL);
	pthread_t thread;
	pthread_create(&thread, NULL, echo, &server);

	char data[20000], back[20000];
	memset(data, 'x', sizeof data);
	struct iovec parts[2] = { { data, 5000 }, { data + 5000, 15000 } };
	struct msghdr message = { .msg_iov = parts, .msg_iovlen = 2 };
	printf("sendmsg %zd\n", sendmsg(client, &message, 0));
	printf("recv %zd, ", recv(client, back, sizeof back, MSG_WAITALL));
	printf("%s\n", memcmp(data, back, sizeof data) ? "other bytes" : "the same bytes");

	struct pollfd p = { client, POLLIN, 0 };
	printf("poll %d\n", poll(&p, 1, 0));
	send(client, "a", 1, MSG_NOSIGNAL);
	printf("poll %d, ", poll(&p, 1, 5000));
	printf("revents %d\n", p.revents);
	fd_set readable;
	FD_ZERO(&readable);
	FD_SET(client, &readable);
	printf("select %d\n", select(client + 1, &readable, NULL, NULL, NULL));
	struct epoll_event event = { EPOLLIN, { .fd = client } };
	int ep = epoll_create1(EPOLL_CLOEXEC);
	printf("epoll_ctl %d\n", epoll_ctl(ep, EPOLL_CTL_ADD, client, &event));
	printf("epoll_wait %d\n", epoll_wait(ep, &event, 1, 5000));
	printf("syscall %ld\n", syscall(SYS_read, client, back, 1L));
	printf("dup2 %d, ", dup2(client, 50));
	printf("fcntl %d\n", fcntl(50, F_GETFD));
	fflush(stdout);

	int status;
	pid_t child = fork();
	if (!child) {
		write(50, "b", 1);
		_exit(read(50, back, 1) == 1 ? 3 : 4);
	}
	printf("child %d, ", waitpid(child, &status, 0) == child);
	printf("status %d\n", WEXITSTATUS(status));
	fflush(stdout);
	child = vfork();
	if (!child) {
		execl("/proc/self/exe", "foreign", "again", (char *)NULL);
		_exit(127);
	}
	waitpid(child, &status, 0);

	signal(SIGALRM, on_alarm);
	alarm(1);
	printf("pause: %d\n", poll(NULL, 0, 3000));
	shutdown(client, SHUT_WR);
	close(50);
	pthread_join(thread, NULL);
	close(server);
	FILE *file = fdopen(dup(client), "r");
	int end = fgetc(file);
	printf("fgetc %d, fclose %d\n", end, fclose(file));
	int first = close(client);
	printf("close %d, again %d\n", first, close(client));
	exit(7);
}
