// Functions for programs that an operator switches to kernel TCP and back while they run (netacc_ctl). Without NetACC
// nothing is switched, and the programs do the same on kernel TCP.
#ifndef CTL_H
#define CTL_H
#include "t.h"
#include <sys/stat.h>

// Whether the process has NetACC; netacc_ctl lies where netacc_ss does.
__attribute__((unused)) static int has_ctl(void) { return getenv("NETACC_SS") != NULL; }

// Calls netacc_ctl, which waits for `seconds`; with `must` the process has to follow.
__attribute__((unused)) static void ctl_call(const char *action, pid_t pid, double seconds, int must)
{
	char cmd[400], *ss = getenv("NETACC_SS");
	int at = ss ? (int)strlen(ss) - 2 : 0;
	snprintf(cmd, sizeof cmd, "LD_PRELOAD= %.*sctl %s %d -w %.4f 2>&1", at, ss, action, (int)pid, seconds);
	static __thread char out[4096];
	FILE *p = popen(cmd, "r");
	CHECK(p);
	size_t n = fread(out, 1, sizeof out - 1, p);
	out[n] = 0;
	int st = pclose(p);
	CHECK(WIFEXITED(st));
	if (WEXITSTATUS(st) && must)
		die("%.200s: exit %d: %.150s", cmd, WEXITSTATUS(st), out);
}
// The process is to follow within five seconds, or what they are on a slow machine. They are not written as 5: a small
// number among the arguments of a program is taken for a descriptor that it is meant to have.
__attribute__((unused)) static void ctl(const char *action, pid_t pid)
{
	// A process with nothing but kernel sockets may sleep where it hears of nothing.
	if (getenv("NETACC_EXPECT"))
		ctl_call(action, pid, 5 * patience(), 1);
	else if (has_ctl())
		ctl_call(action, pid, 0.05, 0);
}
// The process hears of it at its next call.
__attribute__((unused)) static void ctl_ask(const char *action, pid_t pid)
{
	if (has_ctl())
		ctl_call(action, pid, 0, 0);
}
// To be called by a thread that sleeps while others call netacc_ctl: the end of such a child would interrupt it (EINTR,
// also without a handler) if all signals of the thread that has started the child were still blocked at that moment.
__attribute__((unused)) static void no_sigchld(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	CHECK(!pthread_sigmask(SIG_BLOCK, &set, NULL));
}
// Where the words of netacc_ctl lie on the statistics page, and those of the answer to a reload.
enum { CTL_AT = 156, CTL_RELOAD_AT = CTL_AT + 1, CTL_ANSWERED_AT = 188, CTL_ANSWER_AT = 192 };
// The statistics page of this process, opened for requests; -1: it has none.
__attribute__((unused)) static int stats_page(void)
{
	char path[300], to[300];
	DIR *d = opendir("/proc/self/fd");
	CHECK(d);
	for (struct dirent *e; (e = readdir(d));) {
		snprintf(path, sizeof path, "/proc/self/fd/%.20s", e->d_name);
		ssize_t n = readlink(path, to, sizeof to - 1);
		to[n > 0 ? n : 0] = 0;
		if (strncmp(to, "/memfd:netacc-stats", 19))
			continue;
		int fd = open(path, O_RDWR);
		CHECK(fd >= 0);
		closedir(d);
		return fd;
	}
	closedir(d);
	return -1;
}
// Writes the rules of this program to the file `conf`, as a whole.
__attribute__((unused)) static void write_rules(const char *conf, const char *rules)
{
	char fresh[300];
	snprintf(fresh, sizeof fresh, "%.280s.new", conf);
	FILE *f = fopen(fresh, "w");
	CHECK(f);
	CHECK(fprintf(f, "[rules]\n%s\n", rules) > 0);
	EQ(fclose(f), 0);
	EQ(rename(fresh, conf), 0);
}
// Has the process read its configuration from a file of its own, which begins without a rule; to be called before its
// first socket.
__attribute__((unused)) static const char *own_rules(void)
{
	static char conf[300];
	const char *dir = getenv("TMPDIR");
	snprintf(conf, sizeof conf, "%.200s/rules-%d.conf", dir ? dir : "/tmp", (int)getpid());
	write_rules(conf, "");
	setenv("NACC_CONFIG_FILE", conf, 1);
	return conf;
}
#endif
