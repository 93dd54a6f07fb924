//! Limits that are counts: how much work is done before other threads get the lock, and how much is kept or tried.

/// Number of attempts, 10 ms apart, to send over a full control socket: a fifth of a second.
pub const CONTROL_TRIES: u32 = 20;

/// Number of messages of one control socket that one call reads: a peer may keep sending.
pub const MESSAGES_PER_CALL: usize = 4096;

/// Number of messages that one call reads from the control socket of another user's process. It is small, since one call
/// may read many such links.
pub const STRANGER_MESSAGES_PER_CALL: usize = 32;

/// Number of yields of a process that waits for another sharer's operation, before it checks that sharer's state: an
/// operation copies at most a window.
pub const OWNER_YIELDS: u32 = 20_000;

/// Number of pauses, a millisecond each, between two checks of a sharer that is stopped in the middle of an operation.
pub const OWNER_PAUSES: u32 = 50;

/// Number of milliseconds for which a process waits for relays of its connection before it writes. Afterwards it writes
/// ahead of them.
pub const RELAY_WAIT_MS: u32 = 50;

/// Largest number of connections that one check of a liveness socket accepts: twice its backlog.
pub const ACCEPTS_PER_LOOK: usize = 32;

/// Number of ticks (`Pool::tick`) after which an unused memory region is deregistered.
pub const UNUSED_REGION_TICKS: u32 = 10;

/// Number of companion connections that are accepted before other threads get the engine's lock.
pub const COMPANIONS_PER_PASS: usize = 16;

/// Number of messages of one companion connection that are processed before other threads get the engine's lock.
pub const FAILOVER_MESSAGES_PER_PASS: usize = 32;

/// Number of messages of one connection that are sent before the engine serves the next connection.
pub const MESSAGES_PER_PASS: usize = 8;

/// Number of events of the connection manager that are handled before other threads get the engine's lock: any host can
/// cause them.
pub const CM_EVENTS_PER_PASS: usize = 8;

/// Number of probes that are answered before other threads get the engine's lock.
pub const PROBES_PER_PASS: usize = 64;
