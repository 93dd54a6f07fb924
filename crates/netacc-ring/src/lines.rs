//! The words that two processes share per connection, grouped by the side that writes them.
//!
//! A side's words about its sending and the wakers of its waiting threads are on one cache line, since the peer reads
//! both together. Its words about its reading are on another one, which the peer reads when it needs room.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Value of [`ProducerLine::fin`]: the stream goes on.
pub const OPEN: u32 = 0;
/// Bit of [`ProducerLine::fin`]: no byte follows after `head`.
pub const FIN: u32 = 1;
/// Bit of [`ProducerLine::fin`]: the connection was aborted (a TCP reset).
pub const RESET: u32 = 2;
/// Bit of [`ProducerLine::fin`]: the side has left both rings. After `head` its stream goes on over a kernel socket,
/// which also has the bytes of the other ring that it had not read.
pub const SWITCHED: u32 = 4;
/// Bit of [`ProducerLine::fin`]: this side will not read any more either. It is here and not in the [`ConsumerLine`],
/// so that a writer that has room need not load that one.
pub const CLOSED: u32 = 8;
/// Bit of [`ProducerLine::fin`]: this side has released the slot and accesses none of its words any more.
pub const GONE: u32 = 16;
/// Whether a side whose [`ProducerLine::fin`] is `fin` has ended its stream in none of the ways that the other side
/// finds there: then only its death, which the kernel reports, ends the stream. A side that lies may set bits that it
/// could not have alone, or that mean nothing, and must not escape that by them.
pub const fn has_not_ended(fin: u32) -> bool {
    fin & (FIN | RESET | SWITCHED) == 0
}
/// Bit of [`ProducerLine::fin`]: bytes after `head` are held back, up to [`ConsumerLine::held`] of this side. The
/// reading thread publishes them at [`ConsumerLine::held_until`] at the latest.
pub const HOLDING: u32 = 32;

const _: () = {
    let all = FIN | RESET | SWITCHED | CLOSED | GONE | HOLDING;
    assert!(all.count_ones() == 6, "each mark has a bit of its own");
};

/// The words that one side writes, except those about its reading: a cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct OwnLine {
    /// Words about the direction that the side produces.
    pub producer: ProducerLine,
    /// Words about the side itself.
    pub side: SideLine,
}

/// Words that the producer of one direction writes.
#[derive(Debug, Default)]
#[repr(C)]
pub struct ProducerLine {
    /// Stream position after the last published byte.
    pub head: AtomicU64,
    /// [`crate::Layout`] of the bytes from its origin on; stored before the `head` that covers them.
    pub layout: AtomicU64,
    /// [`OPEN`], or a combination of [`FIN`], [`RESET`], [`SWITCHED`], [`CLOSED`], [`GONE`] and [`HOLDING`]; stored
    /// after the final `head`.
    pub fin: AtomicU32,
    /// Largest number of bytes that the producer keeps unread on its side (SO_SNDBUF); 0: as many as fit. The consumer
    /// uses it to decide when to announce room; a wrong value only delays the producer's own wake-ups.
    pub limit: AtomicU32,
    /// Time (ticks) at which the ready set's bit was last set, by which the consumer sorts events, since bits have no
    /// order.
    pub when: AtomicU64,
}

/// Words that the consumer of one direction writes.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct ConsumerLine {
    /// Stream position of the first byte not yet read.
    pub tail: AtomicU64,
    /// The layout in force at `tail`, for another sharer that continues reading after a fork.
    pub layout: AtomicU64,
    /// For a connection that began on TCP: 0 until this side has switched to the ring, then 1 + the number of bytes
    /// that it has read of those that the peer sent before. After both have switched the kernel no longer tells that
    /// number.
    pub before: AtomicU64,
    /// Largest number of unread bytes that the consumer wants (SO_RCVBUF); 0: not set. It is a request: the producer
    /// honours it only if its own buffer is limited, and no safety depends on it.
    pub window: AtomicU64,
    /// Position after the last byte that is held back. It belongs to the direction that this side writes, and is here
    /// because that line is full.
    pub held: AtomicU64,
    /// Time until which these bytes are held, on the host's monotonic clock.
    pub held_until: AtomicU64,
}

/// Words that one side of a connection writes, and that the other may only clear.
#[derive(Debug, Default)]
#[repr(C)]
pub struct SideLine {
    /// The ready set that gets this connection's bit; 0: none.
    pub subscriber: AtomicU32,
    /// The waker of a thread that sleeps until there is something to read; 0: none. The peer takes it.
    pub rx_waiter: AtomicU32,
    /// The waker of a thread that sleeps until there is room to write; 0: none. The peer takes it.
    pub tx_waiter: AtomicU32,
    /// Not 0: the subscribed ready set wants a bit when there is room. The peer clears it.
    pub want_room: AtomicU32,
    /// The CPU this side last ran on: a hint for the peer's wait policy.
    pub cpu: AtomicU32,
    /// Per direction (0: reading, 1: writing) the process number of the sharer of this side that is in an operation; 0:
    /// none is.
    pub owner: [AtomicU32; 2],
    /// Not 0: this side has or had several sharers, and has passed the peer liveness socket or is about to.
    pub forked: AtomicU32,
}

impl OwnLine {
    /// Resets the words to those of a fresh slot. The CPU and the time of the last bit are hints and stay.
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
    /// Resets the words to those of a fresh slot.
    pub fn wipe(&self) {
        for w in [&self.tail, &self.layout, &self.before, &self.window, &self.held, &self.held_until] {
            w.store(0, Ordering::Relaxed);
        }
    }
}
