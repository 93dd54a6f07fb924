//! The order in which a thread takes locks, which debug builds check: lower ranks first. Two threads that take the same
//! two locks in different orders can wait for each other for ever.
//!
//! `docs/internals/locks.md` says what each lock protects.

/// A lock that is only tried, or taken within a time limit: the thread then goes on without it, so it has no place in
/// the order.
pub const NONE: u8 = 0;
/// Adopting listeners that the process has inherited.
pub const ADOPTION: u8 = 1;
/// Starting the library or an engine, and loading the verbs library.
pub const STARTUP: u8 = 2;
/// A fork.
pub const FORK: u8 = 3;
/// An RDMA engine. A thread that forks takes those of all engines, in the order in which they were made.
pub const ENGINE: u8 = 4;
/// The direction of a connection in which the program receives.
pub const RX: u8 = 5;
/// The direction of a connection in which the program sends.
pub const TX: u8 = 6;
/// The client's links.
pub const POOL: u8 = 7;
/// The lists of registrations and subscriptions.
pub const STRUCTURE: u8 = 8;
/// An epoll instance. An outer one comes before the one that is nested in it.
pub const INSTANCE: u8 = 9;
/// The links of a listener.
pub const LISTENER: u8 = 10;
/// A few words, for a few lines.
pub const LEAF: u8 = 11;
/// The allocator, which may be used under any lock.
pub const HEAP: u8 = 12;

/// Number of ranks.
#[cfg(debug_assertions)]
pub(crate) const RANKS: usize = HEAP as usize + 1;

/// Panics if a thread that holds a lock of the rank `held`, its highest, may not wait for one of the rank `wanted`.
#[cfg(debug_assertions)]
#[track_caller]
pub(crate) fn check(wanted: u8, held: u8) {
    let nests = matches!(wanted, ENGINE | INSTANCE);
    assert!(
        wanted > held || (wanted == held && nests) || wanted == NONE,
        "a lock of rank {wanted} is taken by a thread that holds one of rank {held}; allowed: ranks above it"
    );
}
