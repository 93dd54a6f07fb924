//! How long NetACC waits, believes and repeats: each constant says what it bounds and what a user sees when it ends.
//!
//! What a user sets (`NACC_CONNECT_RDMA_MS`, `NACC_EMPTY_QP_EXPIRE_MS`, `NACC_POLL_CQ_MS`) is in the configuration.
//! Bounds that are counted are in [`limits`](crate::limits).

use core::time::Duration;

/// How long fork(2) waits for another fork, and for threads that are reading a connection it shares.
/// Afterwards the fork goes on without them.
pub const FORK_QUIESCE: Duration = Duration::from_secs(1);

/// How often a process that goes to sleep asks whether its forked descendants still live.
/// A slot that a descendant left is reused this much later; a longer interval saves system calls of alternating work and sleep.
pub const DESCENDANT_CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// How long the parent of a vfork(2) waits before it checks that its child still holds the pipe.
/// Without the child the parent goes on this much later.
pub const VFORK_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// How long a call that names a number waits for another thread that is about to close it.
/// Afterwards the call goes to the file that lies there: the other thread may have lost its processor, or be stopped.
pub const NUMBER_CLOSE: Duration = Duration::from_secs(1);

/// How long an offer to promote a TCP connection to shared memory waits to be matched or answered.
/// Afterwards it is refused or withdrawn, and the connection stays on TCP.
pub const PROMOTION_ANSWER: Duration = Duration::from_secs(2);

/// How long an accepted TCP connection may still be upgraded to RDMA, and how long after a vain request.
/// Afterwards it stays on TCP.
pub const UPGRADE_CANDIDATE: Duration = Duration::from_secs(2);

/// How long a call that only the kernel can do waits until a prepared upgrade is decided.
/// Afterwards the connection is reset, and the log says so: the client may have switched already.
pub const UPGRADE_DECISION: Duration = Duration::from_secs(1);

/// How long a client that sends without a pause stops for the answer to its upgrade request.
/// Afterwards it goes on by TCP and asks again later.
pub const UPGRADE_ANSWER_PAUSE: Duration = Duration::from_millis(10);

/// How long after a vain upgrade request the client repeats it; each further interval is twice as long.
/// Until then the connection stays on TCP.
pub const UPGRADE_RETRY_FIRST: Duration = Duration::from_millis(2);

/// The longest interval between two upgrade requests of one connection.
pub const UPGRADE_RETRY_LONGEST: Duration = Duration::from_secs(1);

/// How long "nobody on that host is reached by RDMA" is believed.
/// Until then connects to it go by TCP without a question.
pub const UNREACHABLE_BELIEVED: Duration = Duration::from_secs(1);

/// How long "the listener there refuses links" is believed.
/// Until then connects to it go by TCP without a question.
pub const REFUSING_BELIEVED: Duration = Duration::from_millis(200);

/// How long the socket pair of a switch to the kernel may take to connect over loopback.
/// A packet filter that drops is not waited for longer: the switch fails with `EAGAIN`.
pub const LOOPBACK_CONNECT: Duration = Duration::from_millis(200);

/// How long the starting process waits for its own thread that reads the link of a relay.
/// Afterwards the relay starts without what that thread was receiving.
pub const RELAY_LINK_HANDOVER: Duration = Duration::from_millis(100);

/// How often a relay asks whether its program has closed a socket that was shut down before.
/// The other end of a connection hears of such a close this much later.
pub const RELAY_CLOSE_CHECK: Duration = Duration::from_secs(4);

/// How long the kernel may take to make a queued connect again on this host, with what was written.
/// Afterwards the attempt has failed with `ETIMEDOUT`: a listener of this host answers at once.
pub const REDISPATCH_LOCAL: Duration = Duration::from_secs(1);

/// As [`REDISPATCH_LOCAL`] for another host, where a lost first packet is sent again after a second.
pub const REDISPATCH_REMOTE: Duration = Duration::from_millis(1500);

/// As [`REDISPATCH_REMOTE`] where that host has just been silent for as long: many connects may wait for the same host,
/// and a call of the program makes them one after the other.
pub const REDISPATCH_SILENT_HOST: Duration = Duration::from_millis(5);

/// How long a connect that the program has closed already may wait for a queue pair.
/// Afterwards what was written to it is sent by TCP.
pub const REDISPATCH_CLOSED: Duration = Duration::from_secs(4);

/// How long a connect waits for a server process that takes none before it goes to another one or to TCP.
/// Longer than a busy server needs, and no longer than a user would notice.
pub const QUEUED_CONNECT: Duration = Duration::from_millis(200);

/// How long the kernel may take for a connect that bypasses a process which takes none, and could also stay queued there.
/// On a busy host the kernel's own packets may be under way for tens of milliseconds. Afterwards the connect is queued anew.
pub const BYPASS_CONNECT: Duration = Duration::from_millis(100);

/// How long the kernel is not asked again after [`BYPASS_CONNECT`] has passed: its listener's queue is full, and it would try
/// again only after a second. Until then connects wait for their process.
pub const KERNEL_QUEUE_FULL: Duration = Duration::from_secs(1);

/// How long one call of the program goes on taking connections to the kernel for an operator.
/// The rest is done by the next calls, so that no call is held up much longer than this.
pub const OPERATOR_SLICE: Duration = Duration::from_millis(5);

/// How long after a round in which some connections could not go to the kernel the next one begins; each further interval is
/// twice as long.
pub const OPERATOR_RETRY_FIRST: Duration = Duration::from_millis(5);

/// The longest interval between two such rounds.
pub const OPERATOR_RETRY_LONGEST: Duration = Duration::from_secs(1);

/// How long a process that ends looks after connections whose peers are about to leave the rings; the last one may take
/// a second more.
pub const SWITCHES_AT_EXIT: Duration = Duration::from_secs(1);
