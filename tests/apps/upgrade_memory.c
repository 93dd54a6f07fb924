// The program has memory of its own under the names that the library gives its memory. It is still there when the library
// was replaced.
#include "ctl.h"
#include <sys/mman.h>
enum { SIZE = 65536 };
static unsigned char *named(const char *name, unsigned key)
{
	int fd = memfd_create(name, MFD_CLOEXEC);
	CHECK(fd >= 0 && !ftruncate(fd, SIZE));
	unsigned char *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(at != MAP_FAILED);
	close(fd);
	pat_fill(at, SIZE, 0, key);
	return at;
}
static void *sleeper(void *x)
{
	int *conn = x;
	char b[4];
	no_sigchld();
	recv_all(conn[1], b, 4);
	send_all(conn[1], b, 4);
	return NULL;
}
int main(void)
{
	t_init();
	static const char *names[] = { "netacc-link", "netacc-stats", "netacc-link of mine", "libnetacc-preload.so" };
	unsigned char *at[4], residency;
	int conn[2];
	pair(conn);
	for (unsigned i = 0; i < 4; i++)
		at[i] = named(names[i], i);
	pthread_t t;
	CHECK(!pthread_create(&t, NULL, sleeper, conn));
	ctl("upgrade", getpid());
	for (unsigned i = 0; i < 4; i++) {
		// Memory that is not mapped would end the program by a signal.
		EQ(mincore(at[i], 4096, &residency), 0);
		pat_check(at[i], SIZE, 0, i);
	}
	char b[4];
	send_all(conn[0], "word", 4);
	recv_all(conn[0], b, 4);
	CHECK(!memcmp(b, "word", 4));
	pthread_join(t, NULL);
	return t_ok("upgrade_memory");
}
