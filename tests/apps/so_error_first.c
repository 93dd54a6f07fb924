// A program whose first call after its peer's reset asks for SO_ERROR gets the error.
#include "t.h"
int main(void)
{
	t_init();
	int port, l = listen_on(&port);
	for (int i = 0; i < 20; i++) {
		int p[2] = { connect_to(port), accept(l, NULL, NULL) }, err = 0;
		socklen_t n = sizeof err;
		char c;
		// By then a peer that began on TCP may have switched, and this side not yet.
		send_all(p[0], "x", 1);
		recv_all(p[1], &c, 1);
		for (int k = 0; k < i; k++)
			ready(p[1], POLLIN, 0);
		abortive(p[1]);
		close(p[1]);
		for (double end = now() + 5; !err && now() < end;)
			EQ(getsockopt(p[0], SOL_SOCKET, SO_ERROR, &err, &n), 0);
		EQ(err, ECONNRESET);
		close(p[0]);
	}
	return t_ok("so_error_first");
}
