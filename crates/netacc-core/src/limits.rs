//! Bounds that are counted: how much is done before others get the lock, and how much is kept or tried.

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

/// New clients that one call of accept(2) looks at: clients that send nothing must not delay the program's connections.
pub const HELLOS_PER_ACCEPT: u32 = 8;

/// Links of a listener that a connect looks at to find one whose process waits for connects.
pub const LINKS_TRIED_FOR_IDLE: usize = 8;

/// How often, a millisecond apart, a relay asks at the end of a stream whether its program has closed the socket:
/// close(2) sends that end a moment before it gives the socket up.
pub const RELAY_END_CHECKS: u32 = 5;
