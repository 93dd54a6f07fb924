//! Time-outs, intervals and lifetimes of beliefs: each constant says what it limits and what a user sees when it ends.
//!
//! The times that a user sets (`NACC_CONNECT_RDMA_MS`, `NACC_EMPTY_QP_EXPIRE_MS`, `NACC_POLL_CQ_MS`) are in the
//! configuration. Limits that are counts are in [`limits`](crate::limits).

use core::time::Duration;

/// How long fork(2) waits for another fork, and for threads that are reading a connection it shares.
/// Afterwards the fork goes on without them.
pub const FORK_QUIESCE: Duration = Duration::from_secs(1);

/// How often a process that goes to sleep asks whether its forked descendants still live.
/// A slot that a descendant left is reused this much later; a longer interval saves system calls of alternating work
/// and sleep.
pub const DESCENDANT_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// How long the parent of a vfork(2) waits before it checks that its child still holds the pipe.
/// Without the child the parent goes on this much later.
pub const VFORK_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// How long a call that names a number waits for another thread that is about to close it.
/// Afterwards the call goes to the file that lies there: the other thread may have lost its processor, or be stopped.
pub const NUMBER_CLOSE: Duration = Duration::from_secs(1);

/// How long a read sleeps on a number of the program's before it looks again whose socket that is, if no number of our own
/// is left for the sleep. A connection that another thread switches meanwhile is read this much later.
pub const NUMBER_CHECK: Duration = Duration::from_millis(20);

/// How long an offer to promote a TCP connection to shared memory waits to be matched or answered.
/// Afterwards it is refused or withdrawn, and the connection stays on TCP.
pub const PROMOTION_ANSWER: Duration = Duration::from_secs(2);

/// How long the host directory is believed to be there and safe, or not. A directory that is made, or whose rights are
/// mended, while a program runs is noticed this much later.
pub const HOST_DIR_BELIEVED: Duration = Duration::from_secs(30);

/// How long a destination is believed not to be a neighbour's: connections to it stay on TCP without a search.
pub const NO_NEIGHBOUR_BELIEVED: Duration = Duration::from_secs(30);

/// How long after its accept a TCP connection from another network namespace may still be offered shared memory. Afterwards,
/// and after some calls, it stays on TCP.
pub const NEIGHBOUR_CANDIDATE: Duration = Duration::from_secs(60);

/// The longest time by which a client delays a send that is to show whether a process has the other end of its
/// connection. The delay is random, so that no other connection happens to keep step.
pub const PROOF_DELAY: Duration = Duration::from_micros(2500);

/// For how long after such a delay no other connection to the destination delays its sends. It is longer than each of the
/// waits of a send.
pub const PROOF_TURN: Duration = Duration::from_millis(40);

/// How long after such a send the process's count may follow. A later one shows nothing, and the next send is watched.
pub const PROOF_REACTION: Duration = Duration::from_micros(500);

/// How long a side waits for a reader that is behind to have read all that was sent. A fifth of it if the send itself would
/// not have to wait for the reader.
pub const PROOF_READER: Duration = Duration::from_millis(25);

/// How long after a search that was too early, perhaps, the next one begins; four times as long after each further one.
pub const SEARCH_AGAIN: Duration = Duration::from_millis(10);

/// How long a process keeps a connection in mind for which it has an offer from another network namespace. Afterwards it
/// refuses the offer, and the connection stays on TCP.
pub const NEIGHBOUR_OFFER: Duration = Duration::from_secs(60);

/// How long a client that sends without a pause stops for a neighbour's answer after it has confirmed its offer.
/// Afterwards it continues by TCP, and the answer is looked for at later calls.
pub const NEIGHBOUR_ANSWER_PAUSE: Duration = Duration::from_millis(10);

/// How long after its accept, or after an unsuccessful request, a TCP connection may still be upgraded to RDMA.
/// Afterwards it stays on TCP.
pub const UPGRADE_CANDIDATE: Duration = Duration::from_secs(2);

/// How long a call that only the kernel can do waits until a prepared upgrade is decided.
/// Afterwards the connection is reset, and the log says so: the client may have switched already.
pub const UPGRADE_DECISION: Duration = Duration::from_secs(1);

/// How long a client that sends without a pause stops for the answer to its upgrade request. Afterwards it continues by
/// TCP and repeats the request later.
pub const UPGRADE_ANSWER_PAUSE: Duration = Duration::from_millis(10);

/// How long after an unsuccessful upgrade request the client repeats it; each further interval is twice as long. Until
/// then the connection stays on TCP.
pub const UPGRADE_RETRY_FIRST: Duration = Duration::from_millis(2);

/// The longest interval between two upgrade requests of one connection.
pub const UPGRADE_RETRY_LONGEST: Duration = Duration::from_secs(1);

/// How long a host is believed not to be reachable by RDMA. Until then connects to it go by TCP without a probe.
pub const UNREACHABLE_BELIEVED: Duration = Duration::from_secs(1);

/// How long a process that leaves a listener to the kernel waits for clients that have reached its rendezvous and have
/// not introduced themselves. A client that takes longer makes its connect once more at its next call.
pub const LAST_HELLOS: Duration = Duration::from_millis(20);

/// How long a connect waits for a server that passes earlier ones on to the kernel's queue, since it would be accepted
/// before them.
pub const HANDING_ON: Duration = Duration::from_millis(100);

/// How long a listener is believed to refuse links. Until then connects to it go by TCP without an attempt.
pub const REFUSING_BELIEVED: Duration = Duration::from_millis(200);

/// How long the socket pair of a switch to the kernel may take to connect over loopback. If a packet filter drops the
/// packets, the switch fails with `EAGAIN` afterwards.
pub const LOOPBACK_CONNECT: Duration = Duration::from_millis(200);

/// How long the starting process waits for its own thread that reads the link of a relay.
/// Afterwards the relay starts without what that thread was receiving.
pub const RELAY_LINK_HANDOVER: Duration = Duration::from_millis(100);

/// How often a relay checks whether its program has closed a socket that was shut down before. The peer sees such a
/// close at most this much later.
pub const RELAY_CLOSE_CHECK: Duration = Duration::from_secs(4);

/// How long the kernel may take to make a queued connect again on this host and to send its bytes. Afterwards the
/// attempt has failed with `ETIMEDOUT`: a listener of this host answers at once.
pub const REDISPATCH_LOCAL: Duration = Duration::from_secs(1);

/// How often the kernel is asked whether there is room in a listener's full queue for a queued connect whose server
/// process has died. The connect is accepted this much later.
pub const ROOM_CHECK: Duration = Duration::from_millis(20);

/// How long such a connect waits for its next attempt after the kernel has not answered one, although there seemed to
/// be room.
pub const ROOM_RETRY: Duration = Duration::from_secs(4);

/// How long the kernel may take to make a queued connect again to another host: a lost first packet is sent again after
/// a second. Afterwards the attempt has failed with `ETIMEDOUT`.
pub const REDISPATCH_REMOTE: Duration = Duration::from_millis(1500);

/// How long the kernel may take to make a queued connect again to another host that was just silent for
/// [`REDISPATCH_REMOTE`]: many connects may wait for the same host, and a call of the program makes them one after the
/// other.
pub const REDISPATCH_SILENT_HOST: Duration = Duration::from_millis(5);

/// How long a connect that the program has closed already may wait for a queue pair. Afterwards the bytes that were
/// written to it are sent by TCP.
pub const REDISPATCH_CLOSED: Duration = Duration::from_secs(4);

/// How long a connect waits for a server process that accepts none before it is redispatched to another one or to TCP.
/// Longer than a busy server needs, and no longer than a user would notice.
pub const QUEUED_CONNECT: Duration = Duration::from_millis(200);

/// How long a connect waits for one of several server processes before it moves to another one that waits for connects, or
/// to the queue that all of them have. Longer than an event loop needs for its other events.
pub const QUEUED_CONNECT_MOVES: Duration = Duration::from_millis(8);

/// How long a connect waits at a rendezvous that several processes have in common until one of them takes its link up.
pub const LINK_TAKEN_UP: Duration = Duration::from_secs(2);

/// How long the kernel may take for a connect that bypasses a process which accepts none, and which could also stay
/// queued there. On a busy host the kernel's own packets may take tens of milliseconds. Afterwards the connect is
/// queued anew.
pub const BYPASS_CONNECT: Duration = Duration::from_millis(100);

/// How long no further connect bypasses its process after [`BYPASS_CONNECT`] has passed: the kernel listener's queue is
/// full, and the kernel would try again only after a second. Until then connects wait for their process.
pub const KERNEL_QUEUE_FULL: Duration = Duration::from_secs(1);

/// How long both ends of a connection write without a byte being read before it goes to the kernel, whose buffers hold
/// more. Longer than a program that is about to read is kept from it by others on a busy host.
pub const STANDSTILL: Duration = Duration::from_millis(20);

/// How often an epoll instance looks at a registered socket that another process may make a listener. A wait that begins
/// meanwhile does not hear of clients in shared memory.
pub const UNSETTLED_LOOK: Duration = Duration::from_millis(10);

/// How long one call of the program goes on taking connections to the kernel for an operator.
/// The rest is done by the next calls, so that no call is held up much longer than this.
pub const OPERATOR_SLICE: Duration = Duration::from_millis(5);

/// How long after a round in which some connections could not go to the kernel the next one begins; each further
/// interval is twice as long.
pub const OPERATOR_RETRY_FIRST: Duration = Duration::from_millis(5);

/// How long the threads of a process may take to come out of a library that is to be replaced. Calls that begin meanwhile
/// wait that long; then the library stays.
pub const COMING_OUT: Duration = Duration::from_millis(100);

/// How long a process whose library is to be replaced waits for servers to accept its connects. Then the library stays.
pub const CONNECTS_TAKEN: Duration = Duration::from_secs(1);

/// How long after a connection has left its ring for an operator's request its client first offers to come back; each
/// further interval is twice as long.
pub const COMEBACK_FIRST: Duration = Duration::from_millis(10);

/// The longest interval between two such offers.
pub const COMEBACK_LONGEST: Duration = Duration::from_secs(1);

/// The longest interval between two such rounds.
pub const OPERATOR_RETRY_LONGEST: Duration = Duration::from_secs(1);

/// How long an ending process waits for connections whose peers are leaving the rings; the last one may take a second
/// more.
pub const SWITCHES_AT_EXIT: Duration = Duration::from_secs(1);

/// How long a process that is about to become another user moves connections to other network namespaces to the kernel; the
/// last one may take as long as a switch whose peer takes nothing in.
pub const LEAVE_NEIGHBOURS: Duration = Duration::from_secs(1);

/// How often the windows of all connections are looked at, so that the memory of those that are idle is given back.
/// A window that was drained keeps its memory for this time at least, and for twice as long at most.
pub const IDLE_WINDOW_ROUND: Duration = Duration::from_secs(1);

/// How long after a part of the windows the next part is looked at.
pub const IDLE_WINDOW_LOOK: Duration = Duration::from_millis(10);

/// How long after a thread that was about to sleep has looked at some windows the next one does, while they keep much memory.
pub const IDLE_WINDOW_PASS: Duration = Duration::from_micros(200);
