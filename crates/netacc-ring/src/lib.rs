//! The byte ring and the wake-up protocol between two processes that do not trust each other.
//!
//! * [`Producer`] and [`Consumer`] are the two ends of a single-producer single-consumer byte ring.
//!   Their shared words live in [`ProducerLine`] and [`ConsumerLine`], each written by one side only.
//! * [`ReadySet`] is a ready set: the producer sets a bit per connection, the consumer takes them.
//! * [`HoldersWord`] counts the processes that have one side of a connection after forks.
//! * [`SideLine`] has the wakers of the threads that wait for a connection; `notify` decides which of them are
//!   written.
//!
//! Everything read from a line that the peer writes is a *claim*: it is loaded once, checked in `Producer::refresh` or
//! `Consumer::refresh`, and only then used. A hostile peer can end its own connection, and do no other harm.

#![cfg_attr(not(test), no_std)]
#![warn(
    clippy::cast_lossless,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::ptr_as_ptr
)]

mod area;
mod consumer;
mod holders;
mod lines;
mod notify;
mod producer;
mod ready;
pub mod sync;
pub mod turn;

pub use area::Area;
pub use consumer::Consumer;
pub use holders::{HoldersCount, HoldersWord};
pub use lines::{
    CLOSED, ConsumerLine, FIN, GONE, HOLDING, OPEN, OwnLine, ProducerLine, RESET, SWITCHED, SideLine, has_not_ended,
};
pub use notify::{Ring, notify_data, notify_room};
pub use producer::Producer;
pub use ready::{ReadySet, SLOTS, Taken};

/// Size of the small window in bytes, which an idle or request/response connection uses.
///
/// A loom model has room for a few bytes only, so all sizes are smaller there.
pub const SMALL: usize = if cfg!(loom) { 4 } else { 2048 };
/// Size of the large window in bytes. A larger one does not fit into the cache, and 64 KiB slow bulk transfers down
/// (measured).
pub const LARGE: usize = if cfg!(loom) { 16 } else { 256 * 1024 };

/// The large window is opened in steps of this size (bytes), a page, so that a connection has no more memory than its
/// messages need.
pub const STEP: usize = if cfg!(loom) { 2 } else { 4096 };

/// Receive window (bytes) of a TCP socket without SO_RCVBUF: half of the usual `net.ipv4.tcp_rmem`.
const DEFAULT_WINDOW: u64 = 64 * 1024;

/// Number of bytes that may be in the ring with a producer's limit and a consumer's window. Both ends use this
/// function, so that a writer is woken exactly when it finds room.
#[inline]
fn bound(limit: u64, window: &sync::AtomicU64) -> u64 {
    if limit == 0 {
        return u64::MAX;
    }
    // Relaxed: the window is a request on which no other data depends; see `ConsumerLine::window`.
    let window = match window.load(sync::Ordering::Relaxed) {
        0 => DEFAULT_WINDOW,
        window => window,
    };
    limit.saturating_add(window)
}

/// Largest number of bytes in the ring, of `bound` allowed ones, at which a waiting writer has room: a quarter is free.
#[inline]
fn eased(bound: u64) -> u64 {
    bound - bound / 4
}

/// A stream position, or a number of bytes between two of them, as a size in memory. All supported targets have 64-bit
/// addresses, so that every value is kept.
#[inline]
#[must_use]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the assertion refuses targets on which usize has less than 64 bits"
)]
pub const fn to_usize(n: u64) -> usize {
    const { assert!(usize::BITS >= u64::BITS) };
    n as usize
}

/// The peer wrote a value that no correct peer writes; the connection must be reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation;

/// The largest stream position that is accepted from shared memory. No stream reaches it (a century at a gigabyte per
/// second), so computations with smaller positions do not overflow.
pub(crate) const LAST_POSITION: u64 = 1 << 62;

/// Which of the two windows holds the bytes, and at which stream position its offset 0 lies.
///
/// Packed into one word (bit 63: large; bits 0..63: origin) so that it is read and written at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Whether it is the large window, and not the small one.
    pub large: bool,
    /// Stream position of the window's first byte.
    pub origin: u64,
}

impl Layout {
    const LARGE_BIT: u64 = 1 << 63;

    /// Encodes the layout for the shared word.
    pub fn pack(self) -> u64 {
        self.origin | if self.large { Self::LARGE_BIT } else { 0 }
    }

    /// Decodes the shared word; every value is a layout.
    pub fn unpack(word: u64) -> Layout {
        Layout { large: word & Self::LARGE_BIT != 0, origin: word & !Self::LARGE_BIT }
    }

    /// Size of the window in bytes.
    pub fn size(self) -> usize {
        if self.large { LARGE } else { SMALL }
    }

    /// Offset of stream position `at` in the window: always below [`Layout::size`].
    pub fn offset(self, at: u64) -> usize {
        to_usize(at.wrapping_sub(self.origin)) & (self.size() - 1)
    }
}
