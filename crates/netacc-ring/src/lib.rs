//! How bytes and wake-ups cross between two processes that do not trust each other.
//!
//! * [`Producer`] and [`Consumer`] are the two ends of a single-producer single-consumer byte ring.
//!   Their shared words live in [`ProducerLine`] and [`ConsumerLine`], each written by one side only.
//! * [`ReadySet`] is a ready set: the producer sets a bit per connection, the consumer takes them.
//! * [`SideLine`] carries who wants to be woken for a connection; [`notify`] decides whom to ring.
//!
//! Everything read from a line that the peer writes is a *claim*: it is loaded once, checked in
//! `Producer::refresh` or `Consumer::refresh`, and only then used. A lying peer can end its own connection,
//! nothing else.

#![cfg_attr(not(test), no_std)]

mod area;
mod consumer;
mod lines;
mod notify;
mod producer;
mod ready;
pub mod sync;

pub use area::Area;
pub use consumer::Consumer;
pub use lines::{CLOSED, ConsumerLine, FIN, GONE, HOLDING, OPEN, OwnLine, ProducerLine, RESET, SWITCHED, SideLine};
pub use notify::{Ring, notify_data, notify_room};
pub use producer::Producer;
pub use ready::{ReadySet, SLOTS, Taken};

/// Bytes of the small window: what an idle or request/response connection touches.
///
/// A loom model has room for a few bytes only; all sizes shrink together there.
pub const SMALL: usize = if cfg!(loom) { 4 } else { 2048 };
/// Bytes of the large window. Larger ones leave the cache, 64 KiB hurts bulk transfers (measured).
pub const LARGE: usize = if cfg!(loom) { 16 } else { 256 * 1024 };

/// What a TCP receiver takes that has not set SO_RCVBUF: half of the usual `net.ipv4.tcp_rmem`.
const DEFAULT_WINDOW: u64 = 64 * 1024;

/// Bytes that may be under way with a producer's limit and a consumer's window. Both ends reckon by this, so that the one
/// is told of room when the other finds it.
#[inline]
fn bound(limit: u64, window: &sync::AtomicU64) -> u64 {
    if limit == 0 {
        return u64::MAX;
    }
    // Relaxed: a wish, on which nothing depends; see `ConsumerLine::window`.
    let window = match window.load(sync::Ordering::Relaxed) {
        0 => DEFAULT_WINDOW,
        window => window,
    };
    limit.saturating_add(window)
}

/// The most bytes under way, of those that may be, with which there is room for a writer that waits: a quarter is free.
#[inline]
fn eased(bound: u64) -> u64 {
    bound - bound / 4
}

/// The peer wrote something that no correct peer writes; the connection must be reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation;

/// The largest stream position that is believed when it is taken up from shared memory. No stream comes near it (a century at a
/// gigabyte a second), so nothing overflows that is computed from a position below it.
pub(crate) const LAST_POSITION: u64 = 1 << 62;

/// Which of the two windows holds the bytes, and at which stream position its offset 0 lies.
///
/// Packed into one word (bit 63: large; bits 0..63: origin) so that it is read and written at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The large window, else the small one.
    pub large: bool,
    /// Stream position of the window's first byte.
    pub origin: u64,
}

impl Layout {
    const LARGE_BIT: u64 = 1 << 63;

    /// As kept in the shared word.
    pub fn pack(self) -> u64 {
        self.origin | if self.large { Self::LARGE_BIT } else { 0 }
    }

    /// From the shared word; every value is a layout.
    pub fn unpack(word: u64) -> Layout {
        Layout { large: word & Self::LARGE_BIT != 0, origin: word & !Self::LARGE_BIT }
    }

    /// Bytes in the window.
    pub fn size(self) -> usize {
        if self.large { LARGE } else { SMALL }
    }

    /// Offset of stream position `at` in the window: always below [`Layout::size`].
    pub fn offset(self, at: u64) -> usize {
        (at.wrapping_sub(self.origin) as usize) & (self.size() - 1)
    }
}
