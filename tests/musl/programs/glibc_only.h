// What the programs of tests/apps take from glibc and musl does not have.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define strerrorname_np strerror
#define __fork fork

static inline int close_range(unsigned first, unsigned last, int flags) { return syscall(SYS_close_range, first, last, flags); }
static inline void closefrom(int first) { syscall(SYS_close_range, first, ~0U, 0); }
static inline int execveat(int folder, const char *path, char *const argv[], char *const envp[], int flags)
{
	return syscall(SYS_execveat, folder, path, argv, envp, flags);
}
static inline ssize_t preadv2(int fd, const struct iovec *v, int n, off_t at, int flags)
{
	return syscall(SYS_preadv2, fd, v, n, at, 0L, flags);
}
static inline ssize_t pwritev2(int fd, const struct iovec *v, int n, off_t at, int flags)
{
	return syscall(SYS_pwritev2, fd, v, n, at, 0L, flags);
}
