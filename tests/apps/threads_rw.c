// With 4 writers and 3 readers on one socket no byte is lost or duplicated, and each 8-byte write stays in one piece.
#include "t.h"
enum { W = 4, R = 3, MSGS = 20000 };
static int p[2];
static uint64_t sum_w, sum_r;
static long bytes_r;
static void *writer(void *x)
{
	uint64_t s = 0, seed = (uint64_t)(long)x + 1;
	for (int i = 0; i < MSGS; i++) {
		seed = seed * 6364136223846793005ull + 1442695040888963407ull;
		uint64_t v = seed >> 8;
		EQ(send(p[0], &v, 8, 0), 8);
		for (int k = 0; k < 8; k++)
			s += (v >> 8 * k) & 255;
	}
	__atomic_add_fetch(&sum_w, s, __ATOMIC_SEQ_CST);
	return NULL;
}
static void *reader(void *x)
{
	(void)x;
	unsigned char b[1000];
	uint64_t s = 0;
	ssize_t r;
	while ((r = recv(p[1], b, sizeof b, 0)) > 0) {
		for (int k = 0; k < r; k++)
			s += b[k];
		__atomic_add_fetch(&bytes_r, r, __ATOMIC_SEQ_CST);
	}
	if (r)
		die("recv");
	__atomic_add_fetch(&sum_r, s, __ATOMIC_SEQ_CST);
	return NULL;
}
int main(void)
{
	t_init();
	pair(p);
	expect_shm(p[0]);
	pthread_t w[W], r[R];
	for (int i = 0; i < R; i++)
		pthread_create(&r[i], NULL, reader, NULL);
	for (int i = 0; i < W; i++)
		pthread_create(&w[i], NULL, writer, (void *)(long)i);
	for (int i = 0; i < W; i++)
		pthread_join(w[i], NULL);
	EQ(shutdown(p[0], SHUT_WR), 0); // every reader must see the end
	for (int i = 0; i < R; i++)
		pthread_join(r[i], NULL);
	EQ(bytes_r, (long)W * MSGS * 8);
	CHECK(sum_r == sum_w);
	return t_ok("threads_rw");
}
