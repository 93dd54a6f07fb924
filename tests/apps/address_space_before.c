// A server whose address space was limited before its first socket (RLIMIT_AS) serves every client and has the memory that it
// has on TCP, whatever the limit leaves free.
#include "address_space.h"
enum { CLIENTS = 6, EACH = 3 };
static void serve(int ready, size_t spare)
{
	limit_address_space(((size_t)status_kib("VmSize:") << 10) + spare);
	int port, l = listen_on(&port);
	CHECK(l >= 0);
	EQ(write(ready, &port, sizeof port), sizeof port);
	for (int i = 0; i < CLIENTS * EACH; i++) {
		int fd = accept(l, NULL, NULL);
		CHECK(fd >= 0);
		talk(fd, 0, 7);
		close(fd);
	}
	take_memory(spare / 2);
	_exit(0);
}
static void client(int port)
{
	int fd[EACH];
	for (int i = 0; i < EACH; i++)
		fd[i] = connect_to(port);
	for (int i = 0; i < EACH; i++) {
		talk(fd[i], 1, 7);
		close(fd[i]);
	}
	_exit(0);
}
int main(void)
{
	t_init();
	const size_t spare[] = { 12 << 20, 64 << 20, 400 << 20 };
	for (unsigned n = 0; n < sizeof spare / sizeof *spare; n++) {
		int p[2], port;
		EQ(pipe(p), 0);
		pid_t server = fork_child(), kid[CLIENTS];
		if (!server)
			serve(p[1], spare[n]);
		EQ(read(p[0], &port, sizeof port), sizeof port);
		for (int i = 0; i < CLIENTS; i++) {
			kid[i] = fork_child();
			if (!kid[i])
				client(port);
		}
		for (int i = 0; i < CLIENTS; i++)
			reap(kid[i]);
		reap(server);
		close(p[0]);
		close(p[1]);
	}
	return t_ok("address_space_before");
}
