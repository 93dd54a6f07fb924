// libc's functions, looked up by a handle of libc: they see the connections of the program.
#include "t.h"
#include <dlfcn.h>
static void *libc_handle(void)
{
	void *h = dlopen("libc.so.6", RTLD_NOW);
	return h ? h : dlopen("libc.so", RTLD_NOW); // musl
}
static void *h;
static void *found(const char *name)
{
	void *f = dlsym(h, name);
	if (!f)
		die("%s is not found", name);
	EQ(dlerror(), NULL);
	return f;
}
#define FOUND(name) __typeof__(&name) f_##name = found(#name)
static void connection(int at)
{
	FOUND(socket);
	FOUND(connect);
	FOUND(close);
	FOUND(getsockname);
	FOUND(getpeername);
	struct sockaddr_in a = addr4(at);
	socklen_t n = sizeof a;
	int c = f_socket(AF_INET, SOCK_STREAM, 0);
	EQ(f_connect(c, (struct sockaddr *)&a, sizeof a), 0);
	EQ(f_getpeername(c, (struct sockaddr *)&a, &n), 0);
	EQ(ntohs(a.sin_port), at);
	EQ(f_getsockname(c, (struct sockaddr *)&a, &n), 0);
	CHECK(a.sin_port != 0);
	send_all(c, "b", 1);
	EQ(f_close(c), 0);
}
static void bytes(int p[2])
{
	char b[8];
	FOUND(send);
	FOUND(write);
	FOUND(recv);
	FOUND(read);
	FOUND(poll);
	FOUND(fcntl);
	FOUND(getsockopt);
	FOUND(dup);
	FOUND(close);
	int e = -1;
	socklen_t n = sizeof e;
	EQ(f_send(p[0], "123", 3, 0), 3);
	EQ(f_write(p[0], "4", 1), 1);
	struct pollfd q = { p[1], POLLIN, 0 };
	EQ(f_poll(&q, 1, 10000), 1);
	EQ(f_recv(p[1], b, 2, 0), 2);
	EQ(f_read(p[1], b + 2, 2), 2);
	CHECK(!memcmp(b, "1234", 4));
	EQ(f_getsockopt(p[1], SOL_SOCKET, SO_ERROR, &e, &n), 0);
	EQ(e, 0);
	EQ(f_fcntl(p[1], F_SETFL, O_RDWR | O_NONBLOCK), 0);
	FAILS(recv(p[1], b, 1, 0), EAGAIN);
	EQ(f_fcntl(p[1], F_SETFL, O_RDWR), 0);
	int d = f_dup(p[1]);
	CHECK(d >= 0);
	EQ(f_close(p[1]), 0);
	send_all(p[0], "5", 1);
	EQ(f_recv(d, b, 1, 0), 1);
	EQ(f_close(p[0]), 0);
	EQ(f_recv(d, b, 1, 0), 0);
	EQ(f_close(d), 0);
}
int main(void)
{
	t_init();
	int p[2], at, l = listen_on(&at);
	char b;
	CHECK((h = libc_handle()));
	pair(p);
	expect_shm(p[0]);
	bytes(p);
	connection(at);
	int c = accept(l, NULL, NULL);
	expect_shm(c);
	recv_all(c, &b, 1);
	EQ(recv(c, &b, 1, 0), 0);
	FOUND(dlsym);
	EQ(f_dlsym(h, "recv"), dlsym(h, "recv"));
	EQ(dlsym(h, "recv"), dlsym(RTLD_DEFAULT, "recv"));
	CHECK(dlsym(RTLD_NEXT, "recv"));
	EQ(dlsym(h, "there_is_no_such_function"), NULL);
	CHECK(dlerror());
#ifdef __GLIBC__
	EQ(dlvsym(h, "recv", "GLIBC_0"), NULL);
	CHECK(dlerror());
#ifdef __x86_64__
	EQ(dlvsym(h, "recv", "GLIBC_2.2.5"), dlsym(h, "recv"));
	EQ(dlvsym(RTLD_DEFAULT, "recv", "GLIBC_2.2.5"), dlsym(RTLD_DEFAULT, "recv"));
#endif
#endif
	return t_ok("found_by_handle");
}
