//! Bounds that are counted: how much is done before others get the lock, and how much is kept or tried.

/// Tries, 10 ms apart, to send over a control socket that is full: a fifth of a second.
pub const CONTROL_TRIES: u32 = 20;

/// How often a process yields for another one of its connection that is in the middle of an operation, before it asks what
/// that one is: the other one copies at most a window.
pub const OWNER_YIELDS: u32 = 20_000;

/// How many milliseconds a process waits for relays of its connection before it writes itself.
/// Afterwards it writes ahead of them.
pub const RELAY_WAIT_MS: u32 = 50;

/// Connections that one look at a liveness socket accepts at most: twice its backlog.
pub const ACCEPTS_PER_LOOK: usize = 32;

/// Ticks (`Pool::tick`) after which a memory region that nobody has used is deregistered.
pub const UNUSED_REGION_TICKS: u32 = 10;
