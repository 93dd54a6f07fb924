// A server that limits its address space (RLIMIT_AS, as vsftpd does) after it has accepted its clients still has the
// memory that it would have on TCP. A client opens many further connections after that, and each carries more bytes
// than its first buffer takes before it is accepted.
#include "address_space.h"
enum { CLIENTS = 8, MORE = 100 };
int main(void)
{
	t_init();
	int port, l = listen_n(MORE, &port), fd[CLIENTS];
	long before = status_kib("VmSize:");
	struct sig us, them;
	sigpair(&us, &them);
	pid_t kid[CLIENTS];
	for (int i = 0; i < CLIENTS; i++) {
		kid[i] = fork_child();
		if (!kid[i]) {
			int c = connect_to(port), more[MORE];
			char b[1];
			recv_all(c, b, 1);
			if (i == 0) {
				await(them);
				for (int n = 0; n < MORE; n++) {
					static unsigned char early[TALK];
					more[n] = connect_to(port);
					pat_fill(early, TALK, 0, n);
					// What the kernel takes at once is more than that, and so is what shared memory takes.
					send_all(more[n], early, TALK);
				}
				for (int n = 0; n < MORE; n++) {
					unsigned char back[4];
					recv_all(more[n], back, 4);
					pat_check(back, 4, 0, n);
				}
			}
			_exit(0);
		}
		fd[i] = accept(l, NULL, NULL);
		CHECK(fd[i] >= 0);
	}
	// Less than what the process has by then and may get.
	limit_address_space(((size_t)before + (64 << 10)) << 10);
	take_memory(16 << 20);
	for (int i = 0; i < CLIENTS; i++)
		send_all(fd[i], "x", 1);
	tell(us);
	for (int n = 0; n < MORE; n++) {
		unsigned char b[TALK];
		int s = accept(l, NULL, NULL);
		CHECK(s >= 0);
		recv_all(s, b, TALK);
		send_all(s, b, 4);
	}
	for (int i = 0; i < CLIENTS; i++)
		reap(kid[i]);
	return t_ok("address_space_after");
}
