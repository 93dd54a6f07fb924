// POSIX AIO works on connections after other calls have moved bytes, and so does an AIO read that waits.
#include "t.h"
#include <aio.h>
static void finish(struct aiocb *r, ssize_t n)
{
	const struct aiocb *list[] = { r };
	while (aio_error(r) == EINPROGRESS)
		CHECK(aio_suspend(list, 1, NULL) == 0 || errno == EINTR);
	EQ(aio_error(r), 0);
	EQ(aio_return(r), n);
}
static void both_ways(int writes)
{
	int p[2];
	char b[8];
	pair(p);
	send_all(p[0], "abc", 3);
	recv_all(p[1], b, 3);
	struct aiocb in = { .aio_fildes = p[1], .aio_buf = b, .aio_nbytes = 4 };
	EQ(aio_read(&in), 0);
	if (writes) {
		struct aiocb out = { .aio_fildes = p[0], .aio_buf = "defg", .aio_nbytes = 4 };
		EQ(aio_write(&out), 0);
		finish(&out, 4);
	} else {
		send_all(p[0], "defg", 4);
	}
	finish(&in, 4);
	CHECK(!memcmp(b, "defg", 4));
	send_all(p[1], "back", 4);
	recv_all(p[0], b, 4);
	CHECK(!memcmp(b, "back", 4));
	close(p[0]);
	close(p[1]);
}
static void list(void)
{
	int p[2];
	char b[4];
	pair(p);
	struct aiocb out = { .aio_fildes = p[0], .aio_buf = "list", .aio_nbytes = 4, .aio_lio_opcode = LIO_WRITE },
		     in = { .aio_fildes = p[1], .aio_buf = b, .aio_nbytes = 4, .aio_lio_opcode = LIO_READ },
		     *all[] = { &out, NULL, &in };
	EQ(lio_listio(LIO_WAIT, all, 3, NULL), 0);
	finish(&out, 4);
	finish(&in, 4);
	CHECK(!memcmp(b, "list", 4));
	close(p[0]);
	close(p[1]);
}
int main(void)
{
	t_init();
	both_ways(0);
	both_ways(1);
	list();
	return t_ok("aio");
}
