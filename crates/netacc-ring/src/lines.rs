//! The words two processes share per connection, grouped by the side that writes them, a cache line each.

use crate::sync::{AtomicU32, AtomicU64};

/// [`ProducerLine::fin`]: the stream goes on.
pub const OPEN: u32 = 0;
/// [`ProducerLine::fin`]: no byte follows after `head`.
pub const FIN: u32 = 1;
/// [`ProducerLine::fin`]: the connection was aborted (a TCP reset).
pub const RESET: u32 = 2;
/// [`ProducerLine::fin`]: the side has left both rings; after `head` its stream goes on over a kernel socket, and what it
/// had not read of the other ring is there too.
pub const MOVED: u32 = 4;
/// [`ConsumerLine::closed`]: nobody will read any more.
pub const CLOSED: u32 = 1;

/// Written by the producer of one direction.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct ProducerLine {
    /// Stream position after the last published byte.
    pub head: AtomicU64,
    /// [`crate::Layout`] of the bytes from its origin on; stored before the `head` that covers them.
    pub layout: AtomicU64,
    /// [`OPEN`], or [`FIN`], [`RESET`] and [`MOVED`] together; stored after the final `head`.
    pub fin: AtomicU32,
    /// When the ready set's bit was last set (a tick count): bits have no order, the events they stand for do.
    pub when: AtomicU64,
}

/// Written by the consumer of one direction.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct ConsumerLine {
    /// Stream position of the first byte not yet read.
    pub tail: AtomicU64,
    /// The layout in force at `tail`, for a process that takes the reading over (after a fork).
    pub layout: AtomicU64,
    /// 0 or [`CLOSED`].
    pub closed: AtomicU32,
}

/// Written by one side of a connection (and cleared by the other, which may only clear).
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct SideLine {
    /// The channel whose ready set gets this connection's bit; 0: none.
    pub watch: AtomicU32,
    /// The doorbell of a thread that sleeps until there is something to read; 0: none. The peer takes it.
    pub rx_waiter: AtomicU32,
    /// The doorbell of a thread that sleeps until there is room to write; 0: none. The peer takes it.
    pub tx_waiter: AtomicU32,
    /// Not 0: the watching channel wants to hear of room. The peer clears it.
    pub want_room: AtomicU32,
    /// The CPU this side last ran on: a hint for the peer's wait policy.
    pub cpu: AtomicU32,
    /// Per direction (0: reading, 1: writing) the process id of whoever of this side's family is in the
    /// middle of an operation, when several processes share the side after a fork; 0: nobody.
    pub owner: [AtomicU32; 2],
    /// Of a connection that began on TCP: 0 until this side has gone over to the ring, then 1 + the bytes it has
    /// read of what the peer sent before. Once both have gone over the kernel does not tell any more.
    pub before: AtomicU64,
}
