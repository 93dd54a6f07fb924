// fdopen on a connection works with fprintf, fgets, fread and fclose, and so does dprintf.
#include "t.h"
int main(void)
{
	t_init();
	int p[2];
	pair(p);
	expect_shm(p[0]);
	send_all(p[1], "early", 5);
	char b[100];
	recv_all(p[0], b, 5); // used before fdopen
	FILE *r = fdopen(dup(p[0]), "r"), *w = fdopen(p[0], "w");
	CHECK(r && w);
	for (int i = 0; i < 1000; i++) {
		fprintf(w, "line %d\n", i);
		fflush(w);
		int n = snprintf(b, sizeof b, "line %d\n", i);
		char g[100];
		recv_all(p[1], g, n);
		CHECK(!memcmp(b, g, n));
		send_all(p[1], g, n);
		CHECK(fgets(g, sizeof g, r) && !strcmp(g, b));
	}
	EQ(dprintf(p[1], "%s-%d", "by dprintf", 7), 12);
	EQ(fread(b, 1, 12, r), 12);
	CHECK(!memcmp(b, "by dprintf-7", 12));
	fputs("last", w); // unflushed: fclose writes it
	fclose(w);
	recv_all(p[1], b, 4);
	EQ(ready(p[1], POLLRDHUP, 5), 0);
	fclose(r);
	EQ(recv(p[1], b, 1, 0), 0);
	return t_ok("stdio");
}
