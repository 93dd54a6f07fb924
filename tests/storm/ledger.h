// What all processes of the storm share: a file that everybody maps, of 32-bit words only, so that ./run reads it too.
#ifndef LEDGER_H
#define LEDGER_H
#include <stdatomic.h>
#include <stddef.h>
enum {
	PROCS = 1 << 18, // processes, in the order of their birth
	SLOTS = 1 << 22, // conversations
	SERVERS = 8,
	TEXTS = 16,
	NOBODY = 0,	 // not accepted yet
	IN_BOX = -1,	 // passed, and not taken out yet
};
typedef _Atomic int word;
struct proc {
	word pid;    // 0: not born yet, -1: ended of its own will
	word parent; // of a process that is not born yet: the one that is to make it
	word killed; // set before the signal is sent
	word serves; // of a process that accepts beside others: the number of their port and 1
};
struct slot {
	word holder[2]; // the process at each end, client first
	word kills[2];	// as many had happened when that holder was last unknown; -1: one was under way
	word done;	// bit 0: the client's end saw everything, bit 1: the server's, bit 2: lost with a killed process
	// Between hosts: the processes that connected and accepted, which go on carrying what their children have.
	word engine[2];
	word killed_before; // how many processes of that port had been killed before
	word server;
	word trail[2]; // what was done to each end, the last in the lowest octal digit
};
struct ledger {
	// Set by ./run.
	word stop, kills, deaths; // a kill is noted before the signal is sent, and the death when it is over
	// Written by all.
	word procs, slots, port[SERVERS], resting, completed, lost, failed, acts[8];
	word killed_at; // ms of CLOCK_MONOTONIC, set by ./run when a process is gone
	word carried;	// set by ./run: a connection ends with the process that carries it
	word killed_of[SERVERS]; // processes that accepted beside others, by the number of their port
	word looked;	// set by ./run when it has looked which processes wait in vain
	word unused[64 - 3 - 2 - SERVERS - 4 - 8 - 1 - 1 - SERVERS - 1];
	char why[TEXTS][256];
	struct proc proc[PROCS];
	struct slot slot[SLOTS];
};
_Static_assert(offsetof(struct ledger, why) == 256, "./run reads the words");
#endif
