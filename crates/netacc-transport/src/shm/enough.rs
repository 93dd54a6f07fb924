//! When the bytes that are there suffice a reader that waits for more than one: with SO_RCVLOWAT, and with MSG_PEEK and
//! MSG_WAITALL.
//!
//! A ring holds less than the buffers of a TCP connection, and its writer may have no memory for a larger window. A reader that
//! leaves the bytes where they are until there are more would wait for a writer that waits for it. So bytes behind which the
//! peer's writer waits for room are enough, as a TCP socket is readable when its receive window is closed. The writer asks for
//! room, looks, and wakes the reader ([`wake_reader`]); the reader registers, and looks whether the writer waits
//! ([`is_writer_waiting`]). Both are sequentially consistent, so one of them sees the other.

use crate::endpoint::Endpoint;
use crate::shm::ShmEndpoint;
use crate::shm::parts;
use crate::shm::side::Side;
use crate::shm::slot_side::View;
use core::sync::atomic::Ordering;

/// Number of bytes with which no reader waits for more: an ordinary receive window. A ring whose writer has enough memory
/// holds as many.
pub const FULL: usize = 64 * 1024;

/// Whether there are as many bytes as SO_RCVLOWAT asks for, or as can come before some are read.
pub fn is_lowat_there(ep: &ShmEndpoint) -> bool {
    ep.side.view().is_some_and(|v| is_there(ep, &v))
}

/// As [`is_lowat_there`], for a caller that has found bytes.
#[inline]
pub(super) fn is_there(ep: &ShmEndpoint, v: &View) -> bool {
    let lowat = ep.edges.lowat();
    lowat <= 1 || parts::waiting(ep, v) >= most(v).min(lowat as u64) || is_peer_waiting(ep, v)
}

/// The value with which the peer's program has set SO_RCVBUF; 0: it has set none.
pub fn receive_buffer_of_peer(ep: &ShmEndpoint) -> i32 {
    // Relaxed: the word stands for itself.
    let window = ep.side.view().map_or(0, |v| line!(v, consumer, v.me.other()).window.load(Ordering::Relaxed));
    i32::try_from(window).unwrap_or(i32::MAX)
}

/// Number of bytes with which a reader waits for no more: fewer than [`FULL`] if it has set SO_RCVBUF.
fn most(v: &View) -> u64 {
    // Relaxed: set by this side.
    match line!(v, consumer, v.me).window.load(Ordering::Relaxed) {
        0 => FULL as u64,
        window => window.min(FULL as u64),
    }
}

/// Whether there are bytes in the ring behind which the peer's writer waits for room.
pub fn is_writer_waiting(ep: &ShmEndpoint) -> bool {
    ep.side.view().is_some_and(|v| !parts::has_several(ep) && is_peer_waiting(ep, &v))
}

/// As [`is_writer_waiting`]. The words of a peer on another host are not in this segment; its windows are open as a whole.
fn is_peer_waiting(ep: &ShmEndpoint, v: &View) -> bool {
    !ep.side.is_remote() && peer_waits(v) && ep.unread() > 0
}

/// Whether the peer's writer waits for room, by the words in the segment.
pub(super) fn peer_waits(v: &View) -> bool {
    let words = line!(v, side, v.me.other());
    // SeqCst: pairs with the exchange by which the peer's writer asks for room before it looks.
    words.tx_waiter.load(Ordering::SeqCst) != 0 || words.want_room.load(Ordering::SeqCst) != 0
}

/// To be called by a writer that has asked for room and found none: wakes a reader that sleeps although there are bytes. With
/// [`FULL`] of them none does.
#[cold]
pub(super) fn wake_reader(ep: &ShmEndpoint, v: &View) {
    let unread = ep.rings.peer_left_unread(&ep.side, v).unwrap_or(0);
    if !ep.side.is_remote() && (1..FULL as u64).contains(&unread) {
        ep.announce_data(v);
    }
}
