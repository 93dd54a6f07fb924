// With RLIMIT_FSIZE in a client, a server or both, connections work and SIGXFSZ kills no process, not even one whose
// log has grown to that limit.
#include "t.h"
#include <sys/stat.h>
// Too little for a connection's memory, and enough for the page that says so.
enum { SHOWN = 64 << 20 };
static void limit_files(rlim_t most)
{
	struct rlimit rl = { most, most };
	EQ(setrlimit(RLIMIT_FSIZE, &rl), 0);
}
static void talk(int fd, int first)
{
	static unsigned char b[100000];
	for (int turn = 0; turn < 2; turn++)
		if (turn != first) {
			recv_all(fd, b, sizeof b);
			pat_check(b, sizeof b, 0, turn);
		} else {
			pat_fill(b, sizeof b, 0, turn);
			send_all(fd, b, sizeof b);
		}
}
// The client and the server are processes of their own, limited before their first socket.
static void meet(rlim_t of_client, rlim_t of_server)
{
	int p[2];
	EQ(pipe(p), 0);
	pid_t server = fork_child();
	if (!server) {
		limit_files(of_server);
		int port, l = listen_on(&port);
		EQ(write(p[1], &port, sizeof port), sizeof port);
		for (int i = 0; i < 3; i++) {
			int fd = accept(l, NULL, NULL);
			CHECK(fd >= 0);
			talk(fd, 0);
			close(fd);
		}
		_exit(0);
	}
	pid_t client = fork_child();
	if (!client) {
		int port;
		limit_files(of_client);
		EQ(read(p[0], &port, sizeof port), sizeof port);
		for (int i = 0; i < 3; i++) {
			int fd = connect_to(port);
			if (of_client == SHOWN)
				expect_on(fd, "TCP", "file-size-limit");
			talk(fd, 1);
			close(fd);
		}
		_exit(0);
	}
	reap(client);
	reap(server);
	close(p[0]);
	close(p[1]);
}
// A key with a wrong value is a warning in the log, when the process opens its first socket.
static void warn(const char *name, rlim_t size, rlim_t most)
{
	pid_t child = fork_child();
	if (!child) {
		setenv("NACC_LOG_PATH", name, 1);
		setenv("NACC_SOR_IO_THREADS", "x", 1);
		limit_files(most);
		int p[2];
		pair(p);
		_exit(0);
	}
	reap(child);
	struct stat st;
	EQ(stat(name, &st), 0);
	CHECK(st.st_size >= (off_t)size && st.st_size <= (off_t)most);
}
int main(void)
{
	t_init();
	signal(SIGXFSZ, SIG_DFL);
	const rlim_t all = RLIM_INFINITY, little = 100 << 10;
	meet(little, all);
	meet(SHOWN, all);
	meet(all, little);
	meet(0, 0);
	char name[] = "/tmp/netacc-file-size-XXXXXX";
	int f = mkstemp(name);
	for (rlim_t size = 4096, most = 4090; most <= 4100; most += 3) {
		EQ(ftruncate(f, most < size ? most : size), 0);
		warn(name, most < size ? most : size, most);
	}
	unlink(name);
	return t_ok("file_size_limit");
}
