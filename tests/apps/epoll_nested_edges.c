// An inner instance that is registered edge-triggered is reported as often as the kernel would wake the outer one, and
// not more often.
#include "t.h"
static int in, out;
static struct epoll_event ev[8];
static int ctl(int e, int op, int fd, unsigned events)
{
	struct epoll_event x = { events, { .fd = fd } };
	return epoll_ctl(e, op, fd, &x);
}
#define ADD(e, fd, events) EQ(ctl(e, EPOLL_CTL_ADD, fd, events), 0)
#define MOD(e, fd, events) EQ(ctl(e, EPOLL_CTL_MOD, fd, events), 0)
#define SEES(e, n) EQ(epoll_wait(e, ev, 8, 0), n)
static void arrives(int from, int at)
{
	int before, after;
	EQ(ioctl(at, FIONREAD, &before), 0);
	send_all(from, "x", 1);
	do
		EQ(ioctl(at, FIONREAD, &after), 0);
	while (after == before);
}
// Waits until a connection that began on TCP has switched, if it does: that is an edge too.
static void warm(int p[2])
{
	char c;
	for (int i = 0; i < 40; i++) {
		send_all(p[i & 1], "w", 1);
		recv_all(p[!(i & 1)], &c, 1);
	}
}
static int l;
static void fresh(int p[2])
{
	int port;
	l = listen_on(&port);
	p[0] = connect_to(port);
	p[1] = accept(l, NULL, NULL);
	warm(p);
	in = epoll_create1(0);
	out = epoll_create1(0);
}
static void done(int p[2])
{
	close(p[0]);
	close(p[1]);
	close(in);
	close(out);
	close(l);
}
static void changes(void)
{
	int p[2];
	fresh(p);
	ADD(in, p[0], EPOLLOUT);
	ADD(out, in, EPOLLIN | EPOLLET);
	SEES(out, 1);
	SEES(out, 0);
	MOD(in, p[0], EPOLLOUT | EPOLLRDHUP); // it waits to be reported as before
	SEES(out, 0);
	MOD(in, p[0], EPOLLOUT | EPOLLET);
	SEES(out, 0);
	SEES(in, 1);
	SEES(in, 0);
	MOD(in, p[0], EPOLLOUT | EPOLLET); // nothing waited
	SEES(out, 1);
	SEES(out, 0);
	MOD(in, p[0], EPOLLOUT | EPOLLONESHOT);
	SEES(in, 1);
	arrives(p[1], p[0]); // disabled
	SEES(out, 0);
	MOD(in, p[0], EPOLLIN | EPOLLONESHOT);
	SEES(out, 1);
	done(p);
}
static void not_asked_for(void)
{
	int p[2];
	fresh(p);
	ADD(in, p[0], EPOLLOUT);
	ADD(in, l, EPOLLOUT | EPOLLET);
	ADD(out, in, EPOLLIN | EPOLLET);
	SEES(out, 1);
	arrives(p[1], p[0]);
	SEES(out, 0);
	int c = connect_to(port_of(l));
	EQ(ready(l, POLLIN, 5000), POLLIN);
	SEES(out, 0);
	MOD(in, p[0], EPOLLOUT | EPOLLIN);
	SEES(out, 0);
	arrives(p[1], p[0]);
	SEES(out, 1);
	SEES(out, 0);
	close(c);
	done(p);
}
static void in_two(void)
{
	int p[2], other = epoll_create1(0), top = epoll_create1(0);
	fresh(p);
	ADD(other, p[0], EPOLLIN | EPOLLET);
	ADD(in, p[0], EPOLLIN);
	ADD(out, in, EPOLLIN | EPOLLET);
	ADD(top, out, EPOLLIN | EPOLLET);
	SEES(top, 0);
	SEES(out, 0);
	for (int i = 0; i < 3; i++) {
		arrives(p[1], p[0]);
		SEES(top, 1);
		SEES(out, 1);
		SEES(out, 0);
		SEES(top, 0);
		SEES(other, 1);
		SEES(other, 0);
	}
	SEES(in, 1);
	shutdown(p[1], SHUT_WR);
	EQ(ready(p[0], POLLRDHUP, 5000), POLLRDHUP);
	SEES(out, 1);
	close(top);
	close(other);
	done(p);
}
// An instance wakes with EPOLLIN alone, but asked it is ready by its other name too.
static void other_name(void)
{
	int p[2];
	char c;
	fresh(p);
	ADD(in, p[0], EPOLLIN);
	ADD(out, in, EPOLLIN);
	SEES(in, 0);
	SEES(out, 0);
	arrives(p[1], p[0]);
	MOD(out, in, EPOLLRDNORM);
	SEES(out, 1);
	EQ(ev[0].events, EPOLLRDNORM);
	SEES(out, 1);
	recv_all(p[0], &c, 1);
	SEES(out, 0);
	arrives(p[1], p[0]);
	SEES(out, 0);
	MOD(out, in, EPOLLRDNORM);
	SEES(out, 1);
	done(p);
}
// Edges of a descriptor that is not a connection, alone and beside a connection.
static void foreign(int beside)
{
	int p[2], f = eventfd(0, 0);
	uint64_t one = 1;
	fresh(p);
	if (beside)
		ADD(in, p[0], EPOLLIN);
	EQ(write(f, &one, 8), 8);
	ADD(in, f, EPOLLIN);
	ADD(out, in, EPOLLIN | EPOLLET);
	for (int i = 0; i < 3; i++) {
		SEES(out, 1);
		SEES(out, 0);
		SEES(out, 0);
		EQ(write(f, &one, 8), 8);
	}
	SEES(out, 1);
	MOD(in, f, EPOLLIN | EPOLLERR);
	SEES(out, 0);
	SEES(in, 1);
	SEES(out, 0);
	EQ(read(f, &one, 8), 8);
	SEES(in, 0);
	MOD(out, in, EPOLLIN | EPOLLET);
	SEES(out, 0);
	close(f);
	done(p);
}
// To ask whether there are events changes nothing in their order.
static void asked(void)
{
	int p[2], q[2];
	fresh(p);
	q[0] = connect_to(port_of(l));
	q[1] = accept(l, NULL, NULL);
	warm(q);
	ADD(in, p[0], EPOLLOUT);
	ADD(in, q[0], EPOLLOUT | EPOLLET);
	EQ(ready(in, POLLIN, 0), POLLIN);
	EQ(ready(in, POLLIN, 0), POLLIN);
	SEES(in, 2);
	EQ(ev[0].data.fd, p[0]);
	EQ(ev[1].data.fd, q[0]);
	close(q[0]);
	close(q[1]);
	done(p);
}
int main(void)
{
	t_init();
	changes();
	not_asked_for();
	in_two();
	other_name();
	foreign(0);
	foreign(1);
	asked();
	return t_ok("epoll_nested_edges");
}
