// Shared declarations of the differential tester.
#ifndef DIFF_H
#define DIFF_H
#include "world.h"
#include <stdio.h>
#include <stdlib.h>

// Never more than this in flight in one direction, except inside one op that drains it again: so every byte is in the
// receiver's queue, POLLOUT is always there, and the result of a receive does not depend on buffer sizes.
#define FLIGHT 32000
#define MAXLEN 200000
// Time (us) that is waited for a result which comes a little later than the one that it is compared with; it grows with
// the machine's slowness.
#define LATE(us) ((uint64_t)(us) * slow)
#define SLOTS 28

enum kind { EMPTY, SOCK, LIST, CONN, EPOLL, EVFD };

// One side of a connection (an open file description in each world).
struct end {
	int id, refs, used;
	int nb;                 // O_NONBLOCK
	int closed, shut_wr, shut_rd, linger0, hup; // hup: a reset is to be expected here
	int in_ep;              // was registered in an epoll
	int rcvto, lowat;       // SO_RCVTIMEO set; SO_RCVLOWAT > 1 set
	int noexp;              // the expectation was wrong once: do not wait for it again
	int local_port[2];
	struct end *peer;
	uint64_t tx[2], rx[2];  // stream positions in each world
};

struct slot {
	enum kind kind;
	int fd[2];
	int fam;
	struct end *e;          // CONN: its end; SOCK, LIST: holds nb only
	struct sockaddr_in6 addr[2]; // LIST: where to connect (v4 or v6 inside)
	socklen_t alen;
	int v6only, wild;
	struct lq { struct end *q[64]; int head, tail; } *lq; // LIST: server ends not yet accepted
	int connecting;         // SOCK after EINPROGRESS
	int et;                 // EPOLL: holds edge-triggered or one-shot registrations
	int nreg;
	struct { int slot; unsigned ev; } reg[64];
};

struct res {
	long ret;
	int err, sig, nx;
	uint64_t x[160];
};

extern struct slot S[SLOTS];
extern int verbose, lax_et, step, raw_mode, slow;
extern volatile int sigpipes;
extern unsigned char PAT[];
extern unsigned char RB[2][MAXLEN + 4096];
extern struct res R[2];

// random
uint32_t rnd(void);
int pick(int n);               // 0..n-1
int chance(int percent);
int pick_len(int max);         // skewed towards small and round numbers

// model.c
int new_slot(void);            // -1 when full
int any(enum kind a, enum kind b); // a random slot of either kind, -1 if none
struct end *new_end(void);
void end_put(struct end *e);
const unsigned char *pat(struct end *from, uint64_t off);
int pending(struct end *e, int w); // bytes sent to e and not yet received
void reset_model(void);
void cleanup_worlds(void);
uint64_t now_us(void);

// reporting: say() names the op, done()/same() compares R[N] and R[K]
void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void begin(int w);                        // before the call: errno, SIGPIPE count
void end_(int w, long ret);               // after it
void ex(int w, uint64_t v);               // an extra value to compare
int same(void);
void check(void);                         // same() or report and exit(1)
void fail(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
void report(const char *why);
#define BOTH(w) for (int w = N; w <= K; w++)
#define RUN(w, call) do { begin(w); long r_ = (call); end_(w, r_); } while (0)
#define RUNFD(w, call, out) do { begin(w); long r_ = (call); (out)[w] = (int)r_; end_(w, r_ < 0 ? -1 : 0); } while (0)

// ready_model.c
void settle(void);             // both worlds show the same readiness and queue lengths
int k_ready(int s, short ev);  // kernel world: which of ev does poll give now
void drain(struct end *e, int s, int w); // read everything that was sent to slot s in world w
int slot_of(struct end *e);

// ops; return 0 if it did not apply
struct op { const char *group; int weight; int (*fn)(void); const char *name; };
extern struct op OPS_CONN[], OPS_DATA[], OPS_RECV[], OPS_READY[], OPS_EPOLL[], OPS_MISC[], OPS_BLOCK[];
int make_listener(int fam, int wild, int v6only);
int make_pair(int ls, int nonblock);
int do_close(int s);
int do_send(int s, int len, int variant, int flags);
#endif
