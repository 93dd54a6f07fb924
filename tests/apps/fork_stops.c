// Parent and child read and write one connection at the same time, and one of them is stopped again and again at
// arbitrary points: the other one waits or goes on, and no byte is lost or duplicated.
#include "t.h"
#include <sys/mman.h>
enum { STOPS = 6, PART = 30000 };
struct count {
	uint64_t sent, sum, got, got_sum;
	int over;
};
static struct count *c;
static void count(uint64_t *n, uint64_t *sum, const unsigned char *b, ssize_t r)
{
	uint64_t s = 0;
	for (ssize_t i = 0; i < r; i++)
		s += b[i];
	__atomic_add_fetch(n, r, __ATOMIC_SEQ_CST);
	__atomic_add_fetch(sum, s, __ATOMIC_SEQ_CST);
}
static void reads(int fd)
{
	static unsigned char b[PART];
	ssize_t r;
	while ((r = recv(fd, b, sizeof b, 0)) > 0)
		count(&c->got, &c->got_sum, b, r);
	EQ(r, 0);
}
static void sends(int fd)
{
	static unsigned char b[PART];
	for (uint64_t at = 0; !__atomic_load_n(&c->over, __ATOMIC_SEQ_CST); at += sizeof b) {
		pat_fill(b, sizeof b, at, 1);
		send_all(fd, b, sizeof b);
		count(&c->sent, &c->sum, b, sizeof b);
	}
}
int main(void)
{
	t_init();
	c = mmap(NULL, sizeof *c, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int port, l = listen_on(&port);
	for (int reading = 0; reading < 2; reading++) {
		*c = (struct count){ 0 };
		pid_t peer = fork_child();
		if (!peer) {
			int fd = connect_to(port);
			(reading ? sends : reads)(fd);
			_exit(0);
		}
		int fd = accept(l, NULL, NULL);
		CHECK(fd >= 0);
		pid_t kid[2];
		for (int i = 0; i < 2; i++)
			if (!(kid[i] = fork_child())) {
				(reading ? reads : sends)(fd);
				_exit(0);
			}
		close(fd);
		for (int i = 0; i < STOPS; i++) {
			EQ(kill(kid[i % 2], SIGSTOP), 0);
			EQ(waitpid(kid[i % 2], NULL, WUNTRACED), kid[i % 2]);
			// Longer than anybody would need for an operation. That the other child waits for that time
			// cannot be seen from here.
			usleep(150000);
			EQ(kill(kid[i % 2], SIGCONT), 0);
			// The traffic goes on.
			uint64_t seen = __atomic_load_n(&c->got, __ATOMIC_SEQ_CST);
			while (__atomic_load_n(&c->got, __ATOMIC_SEQ_CST) - seen < 100 * PART)
				usleep(100);
		}
		__atomic_store_n(&c->over, 1, __ATOMIC_SEQ_CST);
		for (int i = 0; i < 2; i++)
			reap(kid[i]);
		reap(peer);
		EQ(c->got, c->sent);
		EQ(c->got_sum, c->sum);
	}
	return t_ok("fork_stops");
}
