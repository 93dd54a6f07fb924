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
