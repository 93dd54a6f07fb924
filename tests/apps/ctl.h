// Functions for programs that an operator switches to kernel TCP and back while they run (netacc_ctl). Without NetACC
// nothing is switched, and the programs do the same on kernel TCP.
#ifndef CTL_H
#define CTL_H
#include "t.h"

// Whether the process has NetACC; netacc_ctl lies where netacc_ss does.
__attribute__((unused)) static int has_ctl(void) { return getenv("NETACC_SS") != NULL; }

// Calls netacc_ctl, which waits for `seconds`; with `must` the process has to follow.
__attribute__((unused)) static void ctl_call(const char *action, pid_t pid, double seconds, int must)
{
	char cmd[400], *ss = getenv("NETACC_SS");
	int at = ss ? (int)strlen(ss) - 2 : 0;
	snprintf(cmd, sizeof cmd, "LD_PRELOAD= %.*sctl %s %d -w %g 2>&1", at, ss, action, (int)pid, seconds);
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
// The process is to follow within five seconds, or what they are on a slow machine.
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
#endif
