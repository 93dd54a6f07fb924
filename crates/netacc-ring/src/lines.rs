//! The words two processes share per connection, grouped by the side that writes them.
//!
//! What a side says when it sends and who is to be woken there lie on one cache line: a reader of the one looks
//! at the other as well. What it says when it reads lies on another, which its peer looks at when it needs room.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// [`ProducerLine::fin`]: the stream goes on.
pub const OPEN: u32 = 0;
/// [`ProducerLine::fin`]: no byte follows after `head`.
pub const FIN: u32 = 1;
/// [`ProducerLine::fin`]: the connection was aborted (a TCP reset).
pub const RESET: u32 = 2;
/// [`ProducerLine::fin`]: the side has left both rings; after `head` its stream goes on over a kernel socket, and what it
/// had not read of the other ring is there too.
pub const SWITCHED: u32 = 4;
/// [`ProducerLine::fin`]: this side will not read any more either. Here and not with what the consumer writes, so
/// that a writer that has room need not look there.
pub const CLOSED: u32 = 8;
/// [`ProducerLine::fin`]: this side is done with the slot: it looks at none of its words any more.
pub const GONE: u32 = 16;
/// [`ProducerLine::fin`]: bytes after `head` are held back, up to [`ConsumerLine::held`] of this side. They are to be shown at
/// [`ConsumerLine::held_until`] at the latest, by the thread that reads them.
pub const HOLDING: u32 = 32;

const _: () = assert!((FIN | RESET | SWITCHED | CLOSED | GONE).count_ones() == 5, "each mark has a bit of its own");

/// What one side says, except about its reading: a cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct OwnLine {
    /// About the direction that it produces.
    pub producer: ProducerLine,
    /// About itself.
    pub side: SideLine,
}

/// Written by the producer of one direction.
#[derive(Debug, Default)]
#[repr(C)]
pub struct ProducerLine {
    /// Stream position after the last published byte.
    pub head: AtomicU64,
    /// [`crate::Layout`] of the bytes from its origin on; stored before the `head` that covers them.
    pub layout: AtomicU64,
    /// [`OPEN`], or of [`FIN`], [`RESET`], [`SWITCHED`], [`CLOSED`], [`GONE`] and [`HOLDING`] what holds; stored after the final
    /// `head`.
    pub fin: AtomicU32,
    /// Bytes that the producer lets wait on its side at most (SO_SNDBUF); 0: as many as fit. The consumer reckons with it
    /// when it tells of room; a wrong value delays the producer's own wake-ups and nothing else.
    pub limit: AtomicU32,
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
    /// Of a connection that began on TCP: 0 until this side has gone over to the ring, then 1 + the bytes it has
    /// read of what the peer sent before. Once both have gone over the kernel does not tell any more.
    pub before: AtomicU64,
    /// Bytes that the consumer wants under way at most (SO_RCVBUF); 0: it has not said. A wish: the producer heeds it
    /// only where its own buffer is bounded, and nothing depends on it.
    pub window: AtomicU64,
    /// Of the direction that this side writes, and here for want of room there: position after the last byte that is held back.
    pub held: AtomicU64,
    /// Until when they are held, on the clock of this host.
    pub held_until: AtomicU64,
}

/// Written by one side of a connection (and cleared by the other, which may only clear).
#[derive(Debug, Default)]
#[repr(C)]
pub struct SideLine {
    /// The ready set that gets this connection's bit; 0: none.
    pub subscriber: AtomicU32,
    /// The waker of a thread that sleeps until there is something to read; 0: none. The peer takes it.
    pub rx_waiter: AtomicU32,
    /// The waker of a thread that sleeps until there is room to write; 0: none. The peer takes it.
    pub tx_waiter: AtomicU32,
    /// Not 0: the subscribed ready set wants to hear of room. The peer clears it.
    pub want_room: AtomicU32,
    /// The CPU this side last ran on: a hint for the peer's wait policy.
    pub cpu: AtomicU32,
    /// Per direction (0: reading, 1: writing) the id of the sharer of this side (after a fork) that is in the middle of an
    /// operation; 0: none is.
    pub owner: [AtomicU32; 2],
    /// Not 0: this side has or had several sharers, and has passed its peer liveness socket or is about to.
    pub forked: AtomicU32,
}

impl OwnLine {
    /// Back to the words of a fresh slot. The CPU is a hint and stays.
    pub fn wipe(&self) {
        let (p, s) = (&self.producer, &self.side);
        for w in [&p.head, &p.layout] {
            w.store(0, Ordering::Relaxed);
        }
        for w in [&p.fin, &p.limit, &s.subscriber, &s.rx_waiter, &s.tx_waiter, &s.want_room, &s.forked]
            .into_iter()
            .chain(&s.owner)
        {
            w.store(0, Ordering::Relaxed);
        }
    }
}

impl ConsumerLine {
    /// Back to the words of a fresh slot.
    pub fn wipe(&self) {
        for w in [&self.tail, &self.layout, &self.before, &self.window, &self.held, &self.held_until] {
            w.store(0, Ordering::Relaxed);
        }
    }
}
