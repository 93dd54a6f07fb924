// fcntl(2) with F_SETFL: a file has the flags that were set, by whatever number, in a child as well, and where it refuses one it
// changes no other. Nothing is spliced into a file that appends.
#include "t.h"
static void flags(int fd)
{
	int d = dup(fd);
	EQ(fcntl(fd, F_SETFL, O_APPEND), 0);
	EQ(fcntl(d, F_GETFL), O_RDWR | O_APPEND);
	FAILS(fcntl(fd, F_SETFL, O_DIRECT | O_NONBLOCK), EINVAL);
	EQ(fcntl(d, F_GETFL), O_RDWR | O_APPEND);
	EQ(fcntl(d, F_SETFL, O_NOATIME | O_CREAT | O_SYNC | O_EXCL), 0);
	EQ(fcntl(fd, F_GETFL), O_RDWR | O_NOATIME);
	EQ(fcntl(fd, F_SETFL, O_APPEND | O_NONBLOCK), 0);
	EQ(fcntl(d, F_GETFL), O_RDWR | O_APPEND | O_NONBLOCK);
	int off = 0;
	EQ(ioctl(fd, FIONBIO, &off), 0);
	EQ(fcntl(d, F_GETFL), O_RDWR | O_APPEND);
	close(d);
}
static void moved(int fd)
{
	int p[2], file = open("/proc/self/exe", O_RDONLY);
	EQ(pipe(p), 0);
	EQ(write(p[1], "x", 1), 1);
	FAILS(splice(p[0], NULL, fd, NULL, 1, 0), EINVAL);
	FAILS(sendfile(fd, file, NULL, 1), EINVAL);
	EQ(fcntl(fd, F_SETFL, 0), 0);
	EQ(splice(p[0], NULL, fd, NULL, 1, 0), 1);
	EQ(sendfile(fd, file, NULL, 1), 1);
	close(p[0]), close(p[1]), close(file);
}
static void in_child(int fd)
{
	EQ(fcntl(fd, F_SETFL, O_APPEND), 0);
	pid_t kid = fork_child();
	if (!kid) {
		EQ(fcntl(fd, F_GETFL), O_RDWR | O_APPEND);
		_exit(0);
	}
	reap(kid);
	EQ(fcntl(fd, F_GETFL), O_RDWR | O_APPEND);
}
int main(void)
{
	t_init();
	int p[2], port, l = listen_on(&port), s = socket(AF_INET, SOCK_STREAM, 0);
	struct sockaddr_in at = addr4(port);
	flags(s);
	EQ(connect(s, (struct sockaddr *)&at, sizeof at), 0);
	EQ(fcntl(s, F_GETFL), O_RDWR | O_APPEND);
	p[0] = accept(l, NULL, NULL);
	EQ(fcntl(p[0], F_GETFL), O_RDWR);
	send_all(s, "x", 1);
	close(s), close(p[0]);
	s = socket(AF_INET, SOCK_STREAM, 0);
	EQ(fcntl(s, F_SETFL, O_APPEND | O_NONBLOCK), 0);
	at = addr4(0);
	EQ(bind(s, (struct sockaddr *)&at, sizeof at), 0);
	EQ(fcntl(s, F_GETFL), O_RDWR | O_APPEND | O_NONBLOCK);
	close(s);
	flags(l);
	close(l);
	pair(p);
	for (int i = 0; i < 2; i++) {
		flags(p[i]);
		moved(p[i]);
		in_child(p[i]);
	}
	return t_ok("status_flags");
}
