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

/// Companion connections that are accepted before other threads get the engine's lock.
pub const COMPANIONS_PER_PASS: usize = 16;

/// Messages of one companion connection that are taken before other threads get the engine's lock.
pub const FAILOVER_MESSAGES_PER_PASS: usize = 32;

/// Messages of one connection that go out before the engine serves the next connection.
pub const MESSAGES_PER_PASS: usize = 8;

/// Events of the connection manager that are dealt with before other threads get the engine's lock: anybody can cause them.
pub const CM_EVENTS_PER_PASS: usize = 8;

/// Reachability questions that are answered before other threads get the engine's lock.
pub const PROBES_PER_PASS: usize = 64;
