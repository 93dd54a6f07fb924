//! Time-outs and intervals of the transports: each constant says what it limits, and what a user sees when it ends.

use core::time::Duration;

/// A time-out in whole milliseconds, as poll(2) and its relatives take it.
#[expect(clippy::cast_possible_truncation, reason = "a longer time-out than 49 days was replaced by the longest one")]
pub(crate) const fn ms(timeout: Duration) -> u32 {
    let ms = timeout.as_millis();
    if ms > u32::MAX as u128 { u32::MAX } else { ms as u32 }
}

/// How long a signal handler waits for a thread that uses a descriptor number of the connection, which takes one system
/// call. Afterwards it continues: that thread may be the one that it has interrupted.
pub const HANDLER_NUMBER_WAIT: Duration = Duration::from_millis(10);

/// Age from which a connection gives the pages of its windows back when it is closed. Younger ones leave them to the next
/// connection.
pub const LASTING_CONNECTION: Duration = Duration::from_secs(1);

/// How often connections are looked at whose ends both write while neither reads.
pub const STANDSTILL_LOOK: Duration = Duration::from_millis(10);

/// How long a peer that did not read its control socket is believed not to read it. Until then no fork waits for it
/// again.
pub const UNRESPONSIVE_PEER: Duration = Duration::from_secs(1);

/// How long a side that offers a switch waits for room in the socket on which the connection goes on. Afterwards the
/// connection is reset.
pub const SWITCH_DRAIN: Duration = Duration::from_secs(5);

/// Total time for which one fork waits for liveness sockets that peers of its own user have announced and not sent yet.
/// They send them within microseconds unless they lose their processor. Afterwards the child's copies of such
/// connections are reset.
pub const FORK_PROMISES_OWN_USER: Duration = Duration::from_millis(150);

/// Total time for which one fork or operation waits for peers of other users, each of which may announce a socket and
/// never send it. Afterwards the effect is that of [`FORK_PROMISES_OWN_USER`].
pub const PROMISES_OTHER_USERS: Duration = Duration::from_millis(10);

/// How long one switch to the kernel waits for its peer, of the same user.
/// Afterwards the switch has failed.
pub const SWITCH_PROMISE: Duration = Duration::from_millis(500);

/// How long a word that a peer of another user can write may delay our threads at once. Afterwards the peer has broken
/// the rules, and its connection is reset.
pub const STRANGER_DELAY_AT_ONCE: Duration = Duration::from_millis(100);

/// How long a word of a peer of another user is believed before the process that it names is checked.
pub const STRANGER_DELAY_UNCHECKED: Duration = Duration::from_millis(1);

/// How long a thread waits for another one that accepts connections at the same liveness socket, which takes a few
/// system calls.
pub const LIVENESS_ACCEPT: Duration = Duration::from_millis(10);

/// How often a connection to the liveness socket of another user's process is tried again, if this process was short of
/// descriptors or memory. The end of that process is noticed this much later.
pub const REDIAL: Duration = Duration::from_millis(20);

/// How long such a connection is tried after the process that opened the link has ended. Afterwards the peer counts as
/// ended, although another process of its side may still have the connection.
pub const REDIAL_WITHOUT_PEER: Duration = Duration::from_secs(10);

/// How long a signal handler that interrupted a holder of locks waits for the lock of another socket or of an engine.
/// Afterwards the handler continues without the lock: its holder may be the thread that it has interrupted.
pub const HANDLER_LOCK_WAIT: Duration = Duration::from_millis(10);

/// How long this host is believed to have no RDMA device. A device that is added is used this much later.
pub const NO_DEVICE_BELIEVED: Duration = Duration::from_secs(1);

/// How often the engine thread checks connects that wait for a first queue pair.
pub const QUEUED_CONNECT_CHECK: Duration = Duration::from_millis(20);

/// How long the companion connection of a queue pair may take to be established. Afterwards the queue pair goes on
/// without one: if it fails, its connections are reset.
pub const COMPANION_CONNECT: Duration = Duration::from_secs(5);

/// How long accept(2) expects a companion connection whose process has not withdrawn it. A killed process withdraws
/// nothing, and the client gives up long before; until then accept checks the first bytes of each connection.
pub const AWAITED_COMPANION: Duration = Duration::from_secs(120);

/// How long a queue pair may outlast its companion connection.
/// Afterwards it goes on without one.
pub const QP_END_AFTER_COMPANION: Duration = Duration::from_secs(1);

/// How long a queue pair may take to be connected, or to finish its last messages.
/// Afterwards it is given up, and connects that wait for it go by TCP.
pub const QP_CONNECT: Duration = Duration::from_secs(2);

/// How long a client's upgrade request waits for the server's program to accept or read the connection.
/// Afterwards the request is refused, and the connection stays on TCP.
pub const UPGRADE_ACCEPT: Duration = Duration::from_secs(2);

/// How long an ending process waits until its written bytes are sent and its queued connects are made by TCP.
/// Afterwards the process ends nevertheless.
pub const EXIT_FLUSH: Duration = Duration::from_secs(2);

/// How long a handed-over engine waits for exec(3) to replace the process. If the process still runs then, exec has
/// failed, and the engine continues here.
pub const EXEC_RETURN: Duration = Duration::from_secs(2);

/// How long a handed-over engine waits for the end of a process whose threads do not use it: the process may be joining
/// a sleeping thread. If it still runs then, the engine continues here.
pub const EXIT_RETURN: Duration = Duration::from_secs(30);

/// How often an engine thread whose engine was handed over checks whether it came back.
pub const HANDED_OVER_CHECK: Duration = Duration::from_millis(20);

/// How long fork(2) waits for a thread that loads the RDMA libraries. Afterwards the fork happens during the loading.
pub const LIBRARY_LOAD: Duration = Duration::from_secs(1);

/// How long a connection from another host waits for a server process that accepts none. Afterwards another process of
/// the listener gets it.
pub const QUEUED_CONNECTION: Duration = Duration::from_millis(200);

/// How often an engine thread that is busy or polls checks its descriptors. Events of the connection manager are
/// handled this much later under load.
pub const FD_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// How often listeners that found no RDMA device are tried again.
/// Clients of other hosts reach them by RDMA this much later.
pub const LISTEN_RETRY: Duration = Duration::from_secs(1);

/// How long a queue pair with unacknowledged messages may be silent before the peer is probed ([`KEEPALIVE_ANSWER`]).
pub const SILENCE_BUSY: Duration = Duration::from_secs(3);

/// How long a queue pair may leave all of its sends uncompleted while its companion connection stands by. A driver
/// reports a send that the peer's device does not take within seconds. Afterwards the queue pair has failed.
pub const COMPLETION_STALL: Duration = Duration::from_secs(10);

/// How long a queue pair with connections and without unacknowledged messages may be silent before the peer is probed.
pub const SILENCE_IDLE: Duration = Duration::from_secs(15);

/// How long a queue pair without a companion connection may be silent before the peer's device is probed,
/// if a connection waits for room or its program asked for keepalives.
pub const SILENCE_NO_COMPANION: Duration = Duration::from_secs(3);

/// How long a queue pair without connections may be silent, on the server's side, before it is probed.
pub const SILENCE_UNUSED: Duration = Duration::from_secs(60);

/// How long a silent peer may take to answer a keepalive probe.
/// Afterwards the queue pair has failed: its connections go on by TCP, or are reset.
pub const KEEPALIVE_ANSWER: Duration = Duration::from_secs(5);

/// How long no further queue pair is requested after one could not be made. Until then connections share the existing
/// ones.
pub const QP_BACKOFF: Duration = Duration::from_secs(1);

/// How long the limits of memory that hold for the process are believed to be as they were read. Windows obey a limit that
/// is lowered meanwhile this much later.
pub const MEMORY_LIMIT_BELIEVED: Duration = Duration::from_secs(1);

/// How long a process believes what is left of such a limit, which other processes use as well.
pub const MEMORY_LEFT_BELIEVED: Duration = Duration::from_millis(100);

/// How long nothing is written into a drained window of more than 32 KiB before its memory is given back, if there is enough
/// of it. A connection with the next message in this time pays nothing.
pub const IDLE_WINDOW: Duration = Duration::from_millis(10);

/// How long nothing is written into a drained window of 32 KiB or less before its memory is given back, if there is enough
/// of it.
pub const IDLE_MODEST_WINDOW: Duration = Duration::from_secs(1);
