//! The parts of a stream that is on its way to or from the kernel: the old subflow comes before the ring, and the kernel
//! socket of a side that follows its peer comes after it.
//!
//! A read may end where a part ends. But a look at bytes without taking them has to see all parts: the bytes of the
//! first are there at each further look, and a program that looks until it sees enough would look for ever.

use crate::endpoint::Endpoint;
use crate::iov::Iov;
use crate::shm::ShmEndpoint;
use crate::shm::slot_side::View;
use netacc_ring::to_usize;
use netacc_sys::raw;

/// The kernel socket whose bytes come after the ring's, or -1.
fn after(ep: &ShmEndpoint) -> i32 {
    if ep.side.state.look().is_on_kernel() { ep.passed.kernel_fd() } else { -1 }
}

/// Whether the bytes of a kernel socket come before or after those of the ring.
pub fn has_several(ep: &ShmEndpoint) -> bool {
    ep.old_subflow.fd() >= 0 || after(ep) >= 0
}

/// Number of bytes that can be read, in all parts.
pub fn unread(ep: &ShmEndpoint) -> usize {
    ep.unread() + waiting_after(ep)
}

/// Number of bytes that can be read, in all parts, for a look that has a view already.
pub(super) fn waiting(ep: &ShmEndpoint, v: &View) -> u64 {
    ep.waiting_in_all(v) + waiting_after(ep) as u64
}

/// Number of bytes in the part after the ring.
fn waiting_after(ep: &ShmEndpoint) -> usize {
    let _using = ep.side.users.begin();
    let fd = after(ep);
    let mut n = 0i32;
    let asked = fd >= 0 && raw::ioctl(fd, to_usize(libc::FIONREAD), (&raw mut n).addr()).is_ok();
    if asked { usize::try_from(n).unwrap_or(0) } else { 0 }
}

/// Whether the stream ends in the part after the ring, or has failed there.
pub fn end_after_ring(ep: &ShmEndpoint) -> bool {
    let _using = ep.side.users.begin();
    let fd = after(ep);
    fd >= 0 && raw::events_now(fd, libc::POLLRDHUP) != 0
}

/// Copies what has arrived in the part after the ring, for a look that has copied all of the ring. Returns the number of
/// bytes.
#[cold]
pub(super) fn peek_after(ep: &ShmEndpoint, dst: &mut Iov<'_>) -> usize {
    let _using = ep.side.users.begin();
    let fd = after(ep);
    // The ring's bytes come after those of an old subflow, once that has ended.
    if fd < 0 || ep.old_subflow.goes_on(&ep.side) {
        return 0;
    }
    let n = dst.receive(fd, libc::MSG_PEEK | libc::MSG_DONTWAIT).unwrap_or(0);
    dst.skip(n);
    n
}
