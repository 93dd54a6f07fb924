//! Limits that are counts: how much work is done in one call, and how much is kept or tried.

/// Number of new clients that one call of accept(2) examines: clients that send nothing must not delay the program's
/// connections.
pub const HELLOS_PER_ACCEPT: u32 = 8;

/// Number of checks, a millisecond apart, by which a relay determines at the end of a stream whether its program has
/// closed the socket: close(2) sends the end a moment before it releases the socket.
pub const RELAY_END_CHECKS: u32 = 5;

/// Number of calls on a connection to another network namespace before its client looks for the neighbour that has it: a
/// connection of a few requests would not gain what the search costs.
pub const CALLS_BEFORE_SEARCH: u32 = 16;

/// How often a client that has heard nothing from its server searches again after it has found no process that has the
/// connection, though one that listens at the destination's port was asked: the server may not have accepted it yet.
pub const SEARCHES_AGAIN: u32 = 6;

/// Number of sends by which a side finds out whether a process has the other end of its connection; each has to be
/// followed by that process's count.
pub const PROOFS: u32 = 6;

/// Largest number of sends that a side watches for that, before it gives the process up: the other side may be too busy
/// to follow in time.
pub const SENDS_WATCHED: u32 = 128;

/// Number of sends in a row for which the other side had not read all before, after which a side waits for it once. It does so
/// again after twice as many each time.
pub const SENDS_BEHIND: u32 = 64;

/// Number of sends of a server, with no byte from the client in between, after which it finds out by its own sends whether
/// the client's process has the other end. A client that sends finds it out earlier.
pub const UNASKED_SENDS: u32 = 8;

/// Largest number of entrances that a client tries for one connection.
pub const ENTRANCES_TRIED: u32 = 32;

/// Number of names in the host directory that one call of the program looks at, which takes some 5 ms. Afterwards the connection
/// stays on TCP: another user may have filled the directory.
pub const NAMES_LOOKED_AT: u32 = 16_384;

/// Largest number of bytes that may be in flight in TCP, in each direction, when a connection switches to shared
/// memory. A process that is demoted before they are read puts them into a new pair of sockets together with a ring's
/// bytes, and no process reads those meanwhile: a pair holds some megabytes.
pub const PROMOTION_TAIL: usize = 1 << 18;
