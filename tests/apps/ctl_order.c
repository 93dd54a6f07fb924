// accept(2) gives the connections of a client in the order in which they were made, whichever of the two processes an
// operator switches off, on or over to another copy of the library between its connects.
#include "ctl.h"
enum { HALF = 4 };
struct request {
	const char *client, *server;
};
static int l, port;
static struct sig at_client, at_server;
static void asked(const char *what, pid_t pid)
{
	char word[20];
	for (snprintf(word, sizeof word, "%s", what); *word;) {
		int n = (int)strcspn(word, " ");
		int more = word[n] == ' ';
		word[n] = 0;
		ctl_ask(word, pid);
		memmove(word, word + n + more, strlen(word + n + more) + 1);
	}
}
static void connects(int from)
{
	for (int i = from; i < from + HALF; i++) {
		char number = (char)i;
		send_all(connect_to(port), &number, 1);
	}
}
static void client(void)
{
	close(l);
	for (int half = 0; half < 2; half++) {
		await(at_client);
		connects(half * HALF);
		tell(at_client);
	}
	await(at_client);
	_exit(0);
}
// `calls`: the server makes a call in between in which it hears of the request, and accepts nothing.
static void once(struct request r, int calls)
{
	l = listen_on(&port);
	sigpair(&at_server, &at_client);
	pid_t kid = fork_child();
	if (!kid)
		client();
	tell(at_server);
	await(at_server);
	asked(r.client, kid);
	asked(r.server, getpid());
	if (calls)
		CHECK(ready(l, POLLIN, 5000));
	tell(at_server);
	await(at_server);
	for (int i = 0; i < 2 * HALF; i++) {
		char number;
		CHECK(ready(l, POLLIN, 5000));
		int s = accept(l, NULL, NULL);
		CHECK(s >= 0);
		recv_all(s, &number, 1);
		if (number != i)
			die("connection %d is accepted in place %d (client: %s, server: %s, %d)", number, i, r.client, r.server, calls);
		close(s);
	}
	tell(at_server);
	reap(kid);
	// The process is accelerated again.
	ctl_ask("on", getpid());
	close(l);
}
int main(void)
{
	static const struct request all[] = { { "", "" },       { "off", "" },       { "", "off" },	  { "off", "off" },
					      { "off", "upgrade" }, { "off on", "off" }, { "off", "off on" }, { "upgrade", "off" } };
	t_init();
	for (unsigned i = 0; i < 2 * sizeof all / sizeof *all; i++)
		once(all[i / 2], i % 2);
	return t_ok("ctl_order");
}
