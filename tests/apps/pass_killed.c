// A server is killed, and the client passes its connections on before it notices: a connection that the server had has
// ended, one that it had not accepted yet goes to another worker, and one that a child of the server has goes on.
#include "t.h"
static int port, l, u[2];
static void echo(int fd)
{
	char c;
	while (recv(fd, &c, 1, 0) == 1)
		send_all(fd, &c, 1);
	close(fd);
}
static void worker(void)
{
	for (;;) {
		int fd = accept(l, NULL, NULL);
		CHECK(fd >= 0);
		echo(fd);
	}
}
static void echoes(int fd, char c)
{
	char b;
	send_all(fd, &c, 1);
	recv_all(fd, &b, 1);
	EQ(b, c);
}
static int passed(int fd)
{
	pass_fd(u[0], fd);
	close(fd);
	return take_fd(u[1]);
}
static void end(pid_t w)
{
	kill(w, SIGKILL);
	reap_killed(w);
}
// Makes a worker that has taken connection *a and is stopped after count echoes.
static pid_t stopped(int *a, int count)
{
	int st;
	pid_t w = fork_child();
	if (!w)
		worker();
	*a = connect_to(port);
	for (int i = 0; i < count; i++)
		echoes(*a, 'a' + i);
	kill(w, SIGSTOP);
	EQ(waitpid(w, &st, WUNTRACED), w);
	CHECK(WIFSTOPPED(st));
	return w;
}
static void taken_and_not(void)
{
	int a;
	char c;
	pid_t w = stopped(&a, 1);
	int b = connect_to(port);
	send_all(b, "b", 1);
	end(w);
	b = passed(b);
	a = passed(a);
	EQ(recv(a, &c, 1, 0), 0);
	w = fork_child();
	if (!w)
		worker();
	recv_all(b, &c, 1);
	EQ(c, 'b');
	end(w);
	close(a);
	close(b);
}
// What the server had not read is a reset, as ever, wherever the connection had got to.
static void unread(int count)
{
	int a;
	char c;
	pid_t w = stopped(&a, count);
	send_all(a, "b", 1);
	end(w);
	a = passed(a);
	FAILS(recv(a, &c, 1, 0), ECONNRESET);
	close(a);
}
// Kills the worker with bytes unread that were sent before anything else: where the connection began on TCP, by that.
static void unread_first(int count)
{
	pid_t w = fork_child();
	if (!w) {
		int fd = accept(l, NULL, NULL);
		char c;
		for (int i = 0; i < count; i++) {
			recv_all(fd, &c, 1);
			send_all(fd, &c, 1);
		}
		pause();
	}
	int a = connect_to(port);
	char c;
	send_all(a, "0123456789", 10);
	for (int i = 0; i < count; i++) {
		recv_all(a, &c, 1);
		EQ(c, '0' + i);
	}
	send_all(a, "x", 1);
	end(w);
	a = passed(a);
	FAILS(recv(a, &c, 1, 0), ECONNRESET);
	close(a);
}
static void family(void)
{
	pid_t w = fork_child();
	if (!w) {
		int fd = accept(l, NULL, NULL);
		if (!fork_child()) {
			echo(fd);
			_exit(0);
		}
		pause();
	}
	int a = connect_to(port);
	echoes(a, 'a');
	end(w);
	a = passed(a);
	for (int i = 0; i < 10; i++)
		echoes(a, 'a' + i);
	close(a);
}
// Killed at some moment while it is passed: bytes, the end or a reset, never a socket that is not connected.
static void meanwhile(int late)
{
	pid_t w = fork_child();
	if (!w)
		worker();
	int a = connect_to(port);
	echoes(a, 'a');
	pid_t k = fork_child();
	if (!k) {
		for (double t = now() + late * 20e-6; now() < t;)
			;
		kill(w, SIGKILL);
		_exit(0);
	}
	a = passed(a);
	char c;
	ssize_t n = send(a, "x", 1, MSG_NOSIGNAL);
	CHECK(n == 1 || errno == EPIPE || errno == ECONNRESET);
	n = recv(a, &c, 1, 0);
	CHECK(n >= 0 || errno == ECONNRESET);
	reap(k);
	reap_killed(w);
	close(a);
}
int main(void)
{
	t_init();
	EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, u), 0);
	l = listen_on(&port);
	for (int i = 0; i < 5; i++) {
		taken_and_not();
		for (int count = 1; count < 6; count++)
			unread(count), unread_first(count);
		family();
	}
	for (int i = 0; i < 60; i++)
		meanwhile(i);
	return t_ok("pass_killed");
}
