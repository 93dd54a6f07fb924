// Processes that share one limit of memory, and whose readers are slow: none is killed by the kernel for what the others have
// not read yet, and each byte comes. Needs a control group of its own, so root.
#include "t.h"
#include <sys/stat.h>
enum { WRITERS = 6, CONNS = 100, PUT = 1000000, LIMIT = 96 << 20 };
static char group[PATH_MAX];
static int put(const char *file, long n)
{
	char path[PATH_MAX + 40];
	snprintf(path, sizeof path, "%s/%s", group, file);
	FILE *f = fopen(path, "w");
	int done = f && fprintf(f, "%ld", n) > 0;
	return (!f || !fclose(f)) && done;
}
// Makes a group for memory below the one of this process (version 1), or below the mount (version 2).
static int make_group(void)
{
	char line[PATH_MAX], mine[PATH_MAX] = "", *file = "memory.max";
	FILE *f = fopen("/proc/self/cgroup", "r");
	while (f && fgets(line, sizeof line, f)) {
		char *path = strstr(line, ":memory:");
		if (path)
			snprintf(mine, sizeof mine, "/memory%s", path + strlen(":memory:"));
	}
	if (f)
		fclose(f);
	mine[strcspn(mine, "\n")] = 0;
	if (*mine)
		file = "memory.limit_in_bytes";
	if (strlen(mine) > PATH_MAX - 100)
		return 0;
	snprintf(group, sizeof group, "/sys/fs/cgroup%.3900s/netacc-shared-limit-%d", mine, getpid());
	if (mkdir(group, 0755))
		return 0;
	if (put(file, LIMIT))
		return 1;
	rmdir(group);
	return 0;
}
static void reader(int l, struct sig writer)
{
	int fd[CONNS];
	for (int i = 0; i < CONNS; i++)
		CHECK((fd[i] = accept(l, NULL, NULL)) >= 0);
	await(writer);
	for (int i = 0; i < CONNS; i++)
		drain_bytes(fd[i], PUT);
	_exit(0);
}
static void writer(struct sig parent)
{
	static char b[PUT];
	int port, l = listen_on(&port), fd[CONNS];
	size_t at[CONNS] = { 0 };
	struct sig ours, theirs;
	CHECK(put("cgroup.procs", getpid()));
	sigpair(&ours, &theirs);
	pid_t kid = fork_child();
	if (!kid) {
		close(parent.r), close(parent.w);
		reader(l, theirs);
	}
	close(l);
	for (int i = 0; i < CONNS; i++) {
		fd[i] = connect_to(port);
		if (i == 0)
			expect_shm(fd[0]);
		for (ssize_t n; at[i] < PUT && (n = send(fd[i], b, PUT - at[i], MSG_DONTWAIT)) > 0;)
			at[i] += n;
	}
	tell(parent);
	await(parent); // all have written what they can
	tell(ours);
	for (int i = 0; i < CONNS; i++)
		send_all(fd[i], b, PUT - at[i]);
	reap(kid);
	_exit(0);
}
static void remove_group(void)
{
	for (int tries = 0; rmdir(group) && tries < 100; tries++)
		usleep(10000);
}
int main(void)
{
	t_init();
	if (!make_group())
		t_skip("shared_limit", "no control group for memory can be made");
	struct sig ours[WRITERS], theirs;
	pid_t kid[WRITERS];
	int st, ended = 0;
	for (int i = 0; i < WRITERS; i++) {
		sigpair(&ours[i], &theirs);
		if (!(kid[i] = fork_child()))
			writer(theirs);
		close(theirs.r), close(theirs.w);
	}
	char c;
	for (int i = 0; i < WRITERS; i++)
		ended |= read(ours[i].r, &c, 1) != 1;
	for (int i = 0; i < WRITERS; i++)
		ended |= write(ours[i].w, "!", 1) != 1;
	for (int i = 0; i < WRITERS; i++)
		ended |= waitpid(kid[i], &st, 0) != kid[i] || st;
	remove_group();
	CHECK(!ended);
	return t_ok("shared_limit");
}
