//! Bounds that are counted: how much is done before others get the lock, and how much is kept or tried.

/// New clients that one call of accept(2) looks at: clients that send nothing must not delay the program's connections.
pub const HELLOS_PER_ACCEPT: u32 = 8;

/// Links of a listener that a connect looks at to find one whose process waits for connects.
pub const LINKS_TRIED_FOR_IDLE: usize = 8;

/// How often, a millisecond apart, a relay asks at the end of a stream whether its program has closed the socket:
/// close(2) sends that end a moment before it gives the socket up.
pub const RELAY_END_CHECKS: u32 = 5;

/// Largest number of bytes that may be under way by TCP, in each direction, when a connection goes over to shared
/// memory. A process that leaves the ring before they are read puts them into a fresh pair of sockets together with a
/// ring's bytes, and nobody reads those meanwhile: a pair takes some megabytes.
pub const PROMOTION_TAIL: usize = 1 << 18;
