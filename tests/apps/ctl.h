// For programs that an operator switches to kernel TCP and back while they run (netacc_ctl). Without NetACC nothing is switched, and
// the programs do the same on kernel TCP.
#ifndef CTL_H
#define CTL_H
#include "t.h"

// Whether the process has NetACC; netacc_ctl lies where netacc_ss does.
__attribute__((unused)) static int has_ctl(void) { return getenv("NETACC_SS") != NULL; }

__attribute__((unused)) static int ctl_status(const char *action, const char *who, const char *more)
{
	char cmd[400], *ss = getenv("NETACC_SS");
	int at = ss ? (int)strlen(ss) - 2 : 0;
	snprintf(cmd, sizeof cmd, "LD_PRELOAD= %.*sctl %s %s %s 2>&1", at, ss, action, who, more);
	static __thread char out[4096];
	FILE *p = popen(cmd, "r");
	CHECK(p);
	size_t n = fread(out, 1, sizeof out - 1, p);
	out[n] = 0;
	int st = pclose(p);
	CHECK(WIFEXITED(st));
	if (WEXITSTATUS(st) && !*more)
		die("%.200s: exit %d: %.150s", cmd, WEXITSTATUS(st), out);
	return WEXITSTATUS(st);
}
// The process is to follow before netacc_ctl's own time-out.
__attribute__((unused)) static void ctl(const char *action, pid_t pid)
{
	char who[20];
	snprintf(who, sizeof who, "%d", (int)pid);
	// A process with nothing but kernel sockets may sleep where it hears of nothing.
	if (getenv("NETACC_EXPECT"))
		EQ(ctl_status(action, who, ""), 0);
	else if (has_ctl())
		ctl_status(action, who, "-w 0.05");
}
// The process hears of it at its next call.
__attribute__((unused)) static void ctl_ask(const char *action, pid_t pid)
{
	char who[20];
	snprintf(who, sizeof who, "%d", (int)pid);
	if (has_ctl())
		ctl_status(action, who, "-w 0");
}
#endif
