// Prints what this system's TCP does in every half-dead state of a socket: one line per state and first call, three calls each.
// Run it plain and under netacc_run: the outputs must be the same (diff). It is a table to read, too.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include "../apps/host.h"

static int A, B, L; // A: the socket looked at; B: its peer; L: a living listener
static struct sockaddr_in LA, DEAD;
static volatile int pipes;
static void on(int s) { (void)s; pipes++; }

static int lst(struct sockaddr_in *a)
{
	socklen_t n = sizeof *a;
	int l = socket(AF_INET, SOCK_STREAM, 0);
	*a = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = host4() };
	if (bind(l, (void *)a, n) || listen(l, 50) || getsockname(l, (void *)a, &n))
		exit(2);
	to_be_found(l);
	return l;
}
static int up(int fd, short ev)
{
	struct pollfd p = { fd, ev, 0 };
	poll(&p, 1, 2000 * patience());
	return p.revents;
}
static int up0(void)
{
	struct pollfd p = { A, 0, 0 };
	poll(&p, 1, 0);
	return p.revents;
}
static void conn(void)
{
	A = socket(AF_INET, SOCK_STREAM, 0);
	if (connect(A, (void *)&LA, sizeof LA))
		exit(3);
	B = accept(L, NULL, NULL);
	fcntl(A, F_SETFL, O_RDWR | O_NONBLOCK);
}
static void rst(int fd)
{
	struct linger l = { 1, 0 };
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
	close(fd);
}

static void s_idle(void) { conn(); }
static void s_fin(void) { conn(); shutdown(B, SHUT_WR); up(A, POLLRDHUP); }
static void s_fin_data(void) { conn(); send(B, "abc", 3, 0); shutdown(B, SHUT_WR); up(A, POLLRDHUP); }
static void s_close(void) { conn(); close(B); B = -1; up(A, POLLRDHUP); }
static void s_close_data(void) { conn(); send(B, "abc", 3, 0); close(B); B = -1; up(A, POLLRDHUP); }
static void s_close_sent(void) { s_close(); send(A, "x", 1, MSG_NOSIGNAL); up(A, 0); }
static void s_close_data_sent(void) { s_close_data(); send(A, "x", 1, MSG_NOSIGNAL); up(A, 0); }
static void s_unread(void) { conn(); send(A, "x", 1, 0); up(B, POLLIN); close(B); B = -1; up(A, 0); }
static void s_unread_data(void) { conn(); send(B, "abc", 3, 0); send(A, "x", 1, 0); up(B, POLLIN); up(A, POLLIN); close(B); B = -1; up(A, POLLHUP); while (!(up(A, 0) & POLLHUP)) {} }
static void s_linger0(void) { conn(); rst(B); B = -1; up(A, 0); }
static void s_wr_linger0(void) { conn(); shutdown(A, SHUT_WR); up(B, POLLRDHUP); rst(B); B = -1; up(A, 0); }
static void s_fin_then_rst(void) { conn(); shutdown(B, SHUT_WR); up(A, POLLRDHUP); rst(B); B = -1; up(A, 0); }
// The other side acknowledges a FIN only after up to 40 ms (FIN_WAIT1 until then; the acknowledgement is an edge for epoll).
static void s_own_wr(void) { conn(); shutdown(A, SHUT_WR); up(B, POLLRDHUP); usleep(70000); }
static void s_own_rd(void) { conn(); shutdown(A, SHUT_RD); }
static void s_own_rd_data(void) { conn(); shutdown(A, SHUT_RD); send(B, "abc", 3, 0); for (int q = 0, i = 0; q < 3 && i < 100; i++) { ioctl(A, FIONREAD, &q); usleep(500); } }
static void s_data_own_rd(void) { conn(); send(B, "abc", 3, 0); up(A, POLLIN); shutdown(A, SHUT_RD); }
static void s_own_rdwr(void) { conn(); shutdown(A, SHUT_RDWR); up(B, POLLRDHUP); usleep(70000); }
static void s_both_fin(void) { conn(); shutdown(B, SHUT_WR); up(A, POLLRDHUP); shutdown(A, SHUT_WR); up(A, 0); }
static void s_both_fin_data(void) { conn(); send(B, "abc", 3, 0); shutdown(B, SHUT_WR); up(A, POLLRDHUP); shutdown(A, SHUT_WR); up(A, 0); }
static void s_peer_rd(void) { conn(); shutdown(B, SHUT_RD); }
static void s_peer_rd_sent(void) { conn(); shutdown(B, SHUT_RD); send(A, "x", 1, 0); up(B, POLLIN); }
static void s_peer_rdwr(void) { conn(); shutdown(B, SHUT_RDWR); up(A, POLLRDHUP); }
static void s_peer_rdwr_sent(void) { s_peer_rdwr(); send(A, "x", 1, MSG_NOSIGNAL); usleep(5000 * patience()); }
static void s_fresh(void) { A = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0); B = -1; }
static void s_bound(void) { s_fresh(); struct sockaddr_in a = LA; a.sin_port = 0; bind(A, (void *)&a, sizeof a); }
static void s_refused_nb(void) { s_fresh(); connect(A, (void *)&DEAD, sizeof DEAD); up(A, POLLOUT); }
static void s_refused(void) { s_fresh(); fcntl(A, F_SETFL, O_RDWR); connect(A, (void *)&DEAD, sizeof DEAD); fcntl(A, F_SETFL, O_RDWR | O_NONBLOCK); }
static void s_connected_nb(void) { s_fresh(); connect(A, (void *)&LA, sizeof LA); up(A, POLLOUT); B = accept(L, NULL, NULL); }
static void s_listen(void) { struct sockaddr_in a; A = lst(&a); fcntl(A, F_SETFL, O_RDWR | O_NONBLOCK); B = -1; }
static void s_listen_wait(void) { struct sockaddr_in a; A = lst(&a); fcntl(A, F_SETFL, O_RDWR | O_NONBLOCK); B = socket(AF_INET, SOCK_STREAM, 0); connect(B, (void *)&a, sizeof a); up(A, POLLIN); }
static void s_listen_shut(void) { s_listen(); shutdown(A, SHUT_RD); }
static void s_listener_closed(void)
{
	struct sockaddr_in a;
	int l = lst(&a);
	A = socket(AF_INET, SOCK_STREAM, 0);
	connect(A, (void *)&a, sizeof a);
	fcntl(A, F_SETFL, O_RDWR | O_NONBLOCK);
	up(l, POLLIN);
	close(l);
	B = -1;
	up(A, 0);
}
static void s_unspec(void) { conn(); struct sockaddr u = { .sa_family = AF_UNSPEC }; connect(A, &u, sizeof u); up(B, 0); }
static void s_peer_unspec(void) { conn(); struct sockaddr u = { .sa_family = AF_UNSPEC }; connect(B, &u, sizeof u); up(A, 0); }

static const struct { const char *name; void (*make)(void); } STATE[] = {
	{ "connected, idle", s_idle },
	{ "connected by non-blocking connect", s_connected_nb },
	{ "peer shutdown(WR)", s_fin },
	{ "peer sent 3, shutdown(WR)", s_fin_data },
	{ "peer closed", s_close },
	{ "peer sent 3, closed", s_close_data },
	{ "peer closed, then we sent 1", s_close_sent },
	{ "peer sent 3, closed, then we sent 1", s_close_data_sent },
	{ "peer closed with unread data", s_unread },
	{ "peer sent 3, closed with unread data", s_unread_data },
	{ "peer closed with SO_LINGER 0", s_linger0 },
	{ "we shutdown(WR), peer closed with SO_LINGER 0", s_wr_linger0 },
	{ "peer shutdown(WR), then closed with SO_LINGER 0", s_fin_then_rst },
	{ "we shutdown(WR)", s_own_wr },
	{ "we shutdown(RD)", s_own_rd },
	{ "we shutdown(RD), then peer sent 3", s_own_rd_data },
	{ "peer sent 3, then we shutdown(RD)", s_data_own_rd },
	{ "we shutdown(RDWR)", s_own_rdwr },
	{ "peer shutdown(WR), we shutdown(WR)", s_both_fin },
	{ "peer sent 3, shutdown(WR), we shutdown(WR)", s_both_fin_data },
	{ "peer shutdown(RD)", s_peer_rd },
	{ "peer shutdown(RD), then we sent 1", s_peer_rd_sent },
	{ "peer shutdown(RDWR)", s_peer_rdwr },
	{ "peer shutdown(RDWR), then we sent 1", s_peer_rdwr_sent },
	{ "fresh socket", s_fresh },
	{ "bound socket", s_bound },
	{ "non-blocking connect refused", s_refused_nb },
	{ "blocking connect refused", s_refused },
	{ "listener", s_listen },
	{ "listener with a connection waiting", s_listen_wait },
	{ "listener after shutdown(RD)", s_listen_shut },
	{ "listener closed before accept (client)", s_listener_closed },
	{ "connect(AF_UNSPEC) on a connection", s_unspec },
	{ "peer did connect(AF_UNSPEC)", s_peer_unspec },
};

static void pr_ev(unsigned e)
{
	static const struct { unsigned b; const char *n; } E[] = { { POLLIN, "IN" }, { POLLPRI, "PRI" }, { POLLOUT, "OUT" }, { POLLERR, "ERR" },
		{ POLLHUP, "HUP" }, { POLLNVAL, "NVAL" }, { POLLRDHUP, "RDHUP" } };
	int n = 0;
	for (unsigned i = 0; i < sizeof E / sizeof *E; i++)
		if (e & E[i].b)
			printf("%s%s", n++ ? "|" : "", E[i].n);
	if (!n)
		printf("0");
}
enum { POLL, POLL0, EPET, EPET2, RECV, RECV0, READ0, PEEK, TRUNC, SEND, SEND0, WRITE0, SENDTO_ADDR, SOERR, FION, OUTQ, PEER, NAME, SHWR, SHRD, CONN, ACCEPT, LISTEN, BIND, STATE_, CALLS };
static const char *CALL[] = { "poll(all)", "poll(0)", "epoll ET", "epoll ET, then own shutdown(WR)", "recv 10", "recv 0", "read 0", "recv PEEK", "recv TRUNC", "send 1", "send 0",
	"write 0", "sendto addr", "SO_ERROR", "FIONREAD", "SIOCOUTQ", "getpeername", "getsockname", "shutdown(WR)", "shutdown(RD)", "connect", "accept", "listen",
	"bind", "TCP_INFO state" };
static void call(int c)
{
	char b[10];
	struct sockaddr_in x = LA;
	socklen_t n = sizeof x;
	int q = 0;
	long r = 0;
	struct tcp_info ti = { 0 };
	pipes = 0;
	errno = 0;
	switch (c) {
	case POLL: case POLL0: {
		struct pollfd p = { A, c == POLL ? POLLIN | POLLOUT | POLLPRI | POLLRDHUP : 0, 0 };
		poll(&p, 1, 0);
		pr_ev(p.revents);
		return;
	}
	case EPET: case EPET2: {
		static int ep = -1, last;
		struct epoll_event e = { EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, { 0 } };
		if (last != A || ep < 0) {
			if (ep >= 0)
				close(ep);
			ep = epoll_create1(0);
			epoll_ctl(ep, EPOLL_CTL_ADD, A, &e);
			last = A;
		} else if (c == EPET2)
			shutdown(A, SHUT_WR);
		e.events = 0;
		epoll_wait(ep, &e, 1, 3 * patience());
		pr_ev(e.events);
		return;
	}
	case RECV: r = recv(A, b, 10, 0); break;
	case RECV0: r = recv(A, b, 0, 0); break;
	case READ0: r = read(A, b, 0); break;
	case PEEK: r = recv(A, b, 10, MSG_PEEK); break;
	case TRUNC: r = recv(A, b, 2, MSG_TRUNC); break;
	case SEND: r = send(A, "y", 1, 0); break;
	case SEND0: r = send(A, "y", 0, 0); break;
	case WRITE0: r = write(A, "y", 0); break;
	case SENDTO_ADDR: r = sendto(A, "y", 1, 0, (void *)&x, n); break;
	case SOERR: n = 4; getsockopt(A, SOL_SOCKET, SO_ERROR, &q, &n); printf("%s", q ? strerrorname_np(q) : "0"); return;
	case FION: r = ioctl(A, FIONREAD, &q); if (!r) r = q; break;
	case OUTQ:
		if (up0() & POLLHUP) { // meaningless numbers in a dead connection
			printf("-");
			return;
		}
		r = ioctl(A, 0x5411, &q); if (!r) r = q; break;
	case PEER: r = getpeername(A, (void *)&x, &n); break;
	case NAME: r = getsockname(A, (void *)&x, &n); printf("port%s0 ", x.sin_port ? "!=" : "="); break;
	case SHWR: r = shutdown(A, SHUT_WR); break;
	case SHRD: r = shutdown(A, SHUT_RD); break;
	case CONN: r = connect(A, (void *)&LA, n); break;
	case ACCEPT: r = accept(A, NULL, NULL); if (r >= 0) { close(r); r = 0; } break;
	case LISTEN: r = listen(A, 5); break;
	case BIND: x.sin_port = 0; r = bind(A, (void *)&x, n); break;
	case STATE_: n = sizeof ti; r = getsockopt(A, IPPROTO_TCP, TCP_INFO, &ti, &n); if (!r) r = ti.tcpi_state; break;
	}
	if (r < 0)
		printf("%s", strerrorname_np(errno));
	else
		printf("%ld", r);
	if (pipes)
		printf("+SIGPIPE");
}
int main(void)
{
	signal(SIGPIPE, on);
	int d = lst(&DEAD);
	close(d);
	d = socket(AF_INET, SOCK_STREAM, 0); // keeps the port without listening
	setsockopt(d, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, 4);
	bind(d, (void *)&DEAD, sizeof DEAD);
	L = lst(&LA);
	for (unsigned s = 0; s < sizeof STATE / sizeof *STATE; s++) {
		printf("[%s]\n", STATE[s].name);
		for (int c = 0; c < CALLS; c++) {
			STATE[s].make();
			if (c == EPET || c == EPET2) // never the number that epoll saw before
				A = fcntl(A, F_DUPFD, 100 + 2 * (int)s + (c == EPET2));
			alarm(10 * patience());
			printf("  %-14s ", CALL[c]);
			for (int k = 0; k < 3; k++) {
				if (k)
					printf(", ");
				call(c);
				if (c == SEND || c == SEND0 || c == SENDTO_ADDR || c == CONN || c == SHWR)
					usleep(3000 * patience()); // the answer of the other side
			}
			printf("\n");
			rst(A);
			if (B >= 0)
				close(B);
			int x; // connections that CONN made
			fcntl(L, F_SETFL, O_RDWR | O_NONBLOCK);
			while ((x = accept(L, NULL, NULL)) >= 0)
				close(x);
			fcntl(L, F_SETFL, O_RDWR);
		}
	}
	return 0;
}
