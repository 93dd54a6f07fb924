// Many connections that were full give their memory back when they are closed, while the two processes stay linked.
#include "t.h"
enum { CONNS = 40, MOST = 2 << 20 };
static void client(int port, struct sig server)
{
	int fd[CONNS], keep = connect_to(port);
	for (int i = 0; i < CONNS; i++) {
		fd[i] = connect_to(port);
		size_t sum = send_until_full(fd[i], 100000);
		EQ(write(server.w, &sum, sizeof sum), sizeof sum);
	}
	await(server); // everything is read, and the connections have lasted
	for (int i = 0; i < CONNS; i += 2)
		close(fd[i]);
	tell(server);
	await(server); // the server has closed its ends, and others first
	for (int i = 1; i < CONNS; i += 2)
		close(fd[i]);
	tell(server);
	await(server);
	close(keep);
	_exit(0);
}
int main(void)
{
	t_init();
	int port, l = listen_on(&port), fd[CONNS];
	struct sig ours, theirs;
	sigpair(&ours, &theirs);
	pid_t kid = fork_child();
	if (!kid)
		client(port, theirs);
	int keep = accept(l, NULL, NULL);
	CHECK(keep >= 0);
	for (int i = 0; i < CONNS; i++) {
		size_t sum;
		CHECK((fd[i] = accept(l, NULL, NULL)) >= 0);
		EQ(read(ours.r, &sum, sizeof sum), sizeof sum);
		drain_bytes(fd[i], sum);
	}
	expect_shm(fd[CONNS - 1]);
	int accelerated = shared_memory() > 0;
	usleep(1300000); // connections that last a second give it back
	tell(ours);
	await(ours);
	for (int i = 0; i < CONNS; i++)
		close(fd[i]);
	tell(ours);
	await(ours);
	if (accelerated)
		CHECK(shared_memory() < MOST);
	if (getenv("NETACC_EXPECT"))
		CHECK(accelerated);
	tell(ours);
	reap(kid);
	close(keep);
	return t_ok("closed_memory");
}
