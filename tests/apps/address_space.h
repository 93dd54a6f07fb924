// Measures and limits the address space of a process.
#ifndef ADDRESS_SPACE_H
#define ADDRESS_SPACE_H
#include "t.h"
#include <sys/mman.h>

// A line of /proc/self/status in KiB, e.g. "VmSize:".
__attribute__((unused)) static long status_kib(const char *key)
{
	char line[200];
	long kib = -1;
	FILE *f = fopen("/proc/self/status", "r");
	CHECK(f);
	while (fgets(line, sizeof line, f))
		if (!strncmp(line, key, strlen(key)))
			kib = atol(line + strlen(key));
	fclose(f);
	CHECK(kib >= 0);
	return kib;
}
__attribute__((unused)) static void limit_address_space(size_t bytes)
{
	struct rlimit rl = { bytes, bytes };
	EQ(setrlimit(RLIMIT_AS, &rl), 0);
}
// What the program needs for itself, a piece at a time.
__attribute__((unused)) static void take_memory(size_t bytes)
{
	for (size_t n = 0; n < bytes; n += 1 << 20)
		if (mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED)
			die("no memory after %zu MiB, VmSize is %ld KiB", n >> 20, status_kib("VmSize:"));
}
// 20,000 bytes there and back, the client's at once. More than fits into the first buffer of a connection.
enum { TALK = 20000 };
__attribute__((unused)) static void talk(int fd, int begins, unsigned k)
{
	unsigned char b[TALK];
	for (int turn = 0; turn < 2; turn++)
		if (turn == !begins) {
			pat_fill(b, TALK, 0, k);
			send_all(fd, b, TALK);
		} else {
			recv_all(fd, b, TALK);
			pat_check(b, TALK, 0, k);
		}
}
#endif
