// Calls by which programs and libraries ask what the kernel can do, and which fail, change nothing: a connection made afterwards
// is accelerated.
#include "t.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

int main(void)
{
	t_init();
	void *none = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct sock_fprog empty = { 0, NULL }, nowhere = { 3, none }, long_one = { 5000, none };
	struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog good = { 1, &allow };
	struct rlimit l = { 8, 4 };
	int p[2];
	// A socket first, so that there is something to give up.
	pair(p);
	FAILS(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, NULL), EFAULT);
	FAILS(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_LOG, none), EFAULT);
	FAILS(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &empty), EINVAL);
	FAILS(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &long_one), EINVAL);
	// A filter that the kernel would take, with a flag that it has not, and with flags that exclude each other.
	FAILS(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 1u << 30, &good), EINVAL);
	FAILS(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_NEW_LISTENER, &good), EINVAL);
	FAILS(syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 1, NULL), EINVAL);
	FAILS(syscall(SYS_seccomp, 99, 0, NULL), EINVAL);
	FAILS(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL), EFAULT);
	FAILS(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, none), EFAULT);
	FAILS(prctl(PR_SET_SECCOMP, 77, 0), EINVAL);
	CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &nowhere) == -1 && (errno == EFAULT || errno == EACCES));
	FAILS(setrlimit(RLIMIT_NOFILE, &l), EINVAL);
	FAILS(prlimit(getpid(), RLIMIT_NOFILE, &l, NULL), EINVAL);
	FAILS(setrlimit(RLIMIT_NOFILE, none), EFAULT);
	EQ(syscall(SYS_io_uring_setup, 0, NULL), -1);
	expect_shm(p[0]);
	close(p[0]), close(p[1]);
	pair(p);
	expect_shm(p[0]);
	return t_ok("probes");
}
