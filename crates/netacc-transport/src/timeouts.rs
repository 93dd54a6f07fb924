//! How long a connection over shared memory waits for its peer or for another process of its own: what each bounds, and what a
//! user sees when it ends.

use core::time::Duration;

/// How long a signal handler waits for a thread that uses a descriptor number of the connection, which takes one system
/// call. Afterwards it goes on: that thread may be what it has interrupted.
pub const HANDLER_NUMBER_WAIT: Duration = Duration::from_millis(10);

/// How long a peer that did not read its control socket is taken not to read it.
/// Until then a fork does not wait for it again.
pub const UNRESPONSIVE_PEER: Duration = Duration::from_secs(1);

/// How long a side that leaves the rings waits for room in the socket on which the connection goes on.
/// Afterwards the connection is reset.
pub const SWITCH_DRAIN: Duration = Duration::from_secs(5);

/// How long one fork waits in vain, altogether, for what peers of its own user have promised and not sent yet. They send it
/// within microseconds unless they lose their processor. Afterwards the child's copies of such connections are reset.
pub const FORK_PROMISES_OWN_USER: Duration = Duration::from_millis(150);

/// As [`FORK_PROMISES_OWN_USER`] for all peers of other users, which may promise what they like: each wait counts.
pub const PROMISES_OTHER_USERS: Duration = Duration::from_millis(10);

/// How long one switch to the kernel waits for its peer, of the same user.
/// Afterwards the switch has failed.
pub const SWITCH_PROMISE: Duration = Duration::from_millis(500);

/// How long a word that a peer of another user can write may hold up our threads at once.
/// Afterwards the peer has broken the rules, and its connection is reset.
pub const STRANGER_DELAY_AT_ONCE: Duration = Duration::from_millis(100);

/// How long such a word is believed before the process that it names is checked.
pub const STRANGER_DELAY_UNCHECKED: Duration = Duration::from_millis(1);

/// How long a thread waits for another one that accepts connections at the same liveness socket: some system calls.
pub const LIVENESS_ACCEPT: Duration = Duration::from_millis(10);

/// How long a signal handler that interrupted a holder of locks waits for the lock of another socket or of an engine.
/// Afterwards the handler goes on without the lock: its holder may be what it has interrupted.
pub const HANDLER_LOCK_WAIT: Duration = Duration::from_millis(10);

/// How long "this host has no RDMA device" is believed.
/// A device that is added is used this much later.
pub const NO_DEVICE_BELIEVED: Duration = Duration::from_secs(1);

/// How often the engine thread checks connects that wait for a first queue pair.
pub const QUEUED_CONNECT_CHECK: Duration = Duration::from_millis(20);

/// How long the companion connection of a queue pair may take to be made.
/// Afterwards the queue pair goes on without one: if it fails, its connections are reset.
pub const COMPANION_CONNECT: Duration = Duration::from_secs(5);

/// How long accept(2) looks for a companion connection whose process has not withdrawn it. A process that was killed withdraws
/// nothing, and the client gives up long before; until then accept looks at the first bytes of each connection.
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

/// How long a process that ends waits for what it has written to go out, and for queued connects to be made by TCP.
/// Afterwards the process ends all the same.
pub const EXIT_FLUSH: Duration = Duration::from_secs(2);

/// How long a handed-over engine waits for exec(3) to replace the process.
/// If the process still runs then, exec has failed, and the engine goes on here.
pub const EXEC_RETURN: Duration = Duration::from_secs(2);

/// As [`EXEC_RETURN`] for a process that ends and whose threads want nothing of the engine: it may join a sleeping thread.
pub const EXIT_RETURN: Duration = Duration::from_secs(30);

/// How often an engine thread whose engine was handed over checks whether it came back.
pub const HANDED_OVER_CHECK: Duration = Duration::from_millis(20);

/// How long fork(2) waits for a thread that loads the RDMA libraries.
/// Afterwards the fork goes on beside the loading.
pub const LIBRARY_LOAD: Duration = Duration::from_secs(1);

/// How long a connection from another host waits for a server process that takes none.
/// Afterwards another process of the listener gets it.
pub const QUEUED_CONNECTION: Duration = Duration::from_millis(200);

/// How often an engine thread that is busy or polls looks at its descriptors.
/// Events of the connection manager are dealt with this much later under load.
pub const FD_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// How often listeners that found no RDMA device are tried again.
/// Clients of other hosts reach them by RDMA this much later.
pub const LISTEN_RETRY: Duration = Duration::from_secs(1);

/// How long a queue pair with unacknowledged messages may be silent before the peer is probed ([`KEEPALIVE_ANSWER`]).
pub const SILENCE_BUSY: Duration = Duration::from_secs(3);

/// How long a queue pair may leave all of its sends uncompleted while its companion connection stands by. A driver reports a
/// send that the peer's device does not take within seconds. Afterwards the queue pair has failed.
pub const COMPLETION_STALL: Duration = Duration::from_secs(10);

/// As [`SILENCE_BUSY`] for a queue pair with connections on which nothing is under way.
pub const SILENCE_IDLE: Duration = Duration::from_secs(15);

/// How long a queue pair without a companion connection may be silent before the peer's device is probed,
/// if a connection waits for room or its program asked for keepalives.
pub const SILENCE_NO_COMPANION: Duration = Duration::from_secs(3);

/// How long a queue pair without connections may be silent, on the server's side, before it is probed.
pub const SILENCE_UNUSED: Duration = Duration::from_secs(60);

/// How long a silent peer may take to answer a keepalive probe.
/// Afterwards the queue pair has failed: its connections go on by TCP, or are reset.
pub const KEEPALIVE_ANSWER: Duration = Duration::from_secs(5);

/// How long no further queue pair is asked for after one could not be had.
/// Until then connections share those that are there.
pub const QP_BACKOFF: Duration = Duration::from_secs(1);
