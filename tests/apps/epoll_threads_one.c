// Two threads wait in one epoll instance, each for one event. When two connections become ready at once, both threads
// get one, and neither has to call again first.
#include "t.h"
#include <sys/syscall.h>
static int ep;
static pid_t tid[2];
static pthread_barrier_t together;
static void *waiter(void *x)
{
	long k = (long)x;
	struct epoll_event ev;
	__atomic_store_n(&tid[k], (pid_t)syscall(SYS_gettid), __ATOMIC_SEQ_CST);
	for (int i = 0; i < 200; i++) {
		char c;
		EQ(epoll_wait(ep, &ev, 1, 5000), 1);
		pthread_barrier_wait(&together);
		EQ(recv(ev.data.fd, &c, 1, 0), 1);
		pthread_barrier_wait(&together);
	}
	return NULL;
}
int main(void)
{
	t_init();
	int p[2][2];
	pthread_t t[2];
	ep = epoll_create1(0);
	pthread_barrier_init(&together, NULL, 3);
	for (int i = 0; i < 2; i++) {
		pair(p[i]);
		struct epoll_event e = { EPOLLIN | EPOLLET, { .fd = p[i][0] } };
		EQ(epoll_ctl(ep, EPOLL_CTL_ADD, p[i][0], &e), 0);
	}
	for (long i = 0; i < 2; i++)
		pthread_create(&t[i], NULL, waiter, (void *)i);
	for (int i = 0; i < 200; i++) {
		for (int k = 0; k < 2; k++) {
			while (!__atomic_load_n(&tid[k], __ATOMIC_SEQ_CST))
				usleep(100);
			let_it_block(getpid(), tid[k]);
		}
		send_all(p[0][1], "a", 1);
		send_all(p[1][1], "b", 1);
		pthread_barrier_wait(&together);
		pthread_barrier_wait(&together);
	}
	for (int i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	return t_ok("epoll_threads_one");
}
