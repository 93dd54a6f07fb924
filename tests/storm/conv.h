// A conversation: two streams whose every byte both ends know beforehand, over one connection that changes hands.
#ifndef CONV_H
#define CONV_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "ledger.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CLIENT, SERVER };
// What happens to an end when it has come to a certain byte.
enum act { PASS_TO_SELF, OWN_SIGNALS, FORK, EXEC, SPAWN, PASS, DUP, ACTS };
enum { PLAN = 2, WAITS = 4 };
enum state { AGAIN, OVER, HANDED };

// What goes with a connection that is handed on.
struct kept {
	uint32_t slot, side, begun, ended, next;
	uint64_t seed, sent, got;
};
struct conv {
	struct kept k;
	int fd, ep;
	uint64_t out, in;
	struct { uint64_t at; enum act what; } plan[PLAN];
	unsigned wait, header;
	unsigned char head[sizeof(struct kept)];
};

extern struct ledger *L;
extern int me, box, acts_allowed; // our number in the ledger; where connections are passed; a bit per act and side
extern int patience; // ms without a byte: a hang
extern char *self;

int born(int parent);
int kills_now(void);
void failed(const struct conv *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void conv_open(struct conv *c, int fd, struct kept k);
void conv_accepted(struct conv *c, int fd);
enum state conv_step(struct conv *c);
short conv_wants(const struct conv *c);
void conv_register(struct conv *c, struct epoll_event *ev); // with c->ep
void conv_drive(struct conv *c); // to its end, in one of the kinds of wait
int box_take(struct conv *c);
uint64_t draw(uint64_t *s);
#endif
