//! What this process is to the engines in it, and whether it may have any.

use crate::rdma::engine::{status, sysfs};
use crate::timeouts;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use netacc_stats::Reason;
use netacc_sys::{SharedCell, libc_kind, raw, time};

/// The process that the engines belong to: a vfork(2) child has its parent's memory.
static PID: AtomicU32 = AtomicU32::new(0);
/// Set if this process has inherited engines by fork; then it makes none.
static INHERITED: AtomicBool = AtomicBool::new(false);
/// Set if this process is a copy.
static ALONE: AtomicBool = AtomicBool::new(false);
/// Set if the program is one of Go.
static GO: SharedCell<bool> = SharedCell::<bool>::new(false);
/// When the host was last found to have no RDMA device ([`time::coarse`]).
static NO_DEVICE: SharedCell<u64> = SharedCell::<u64>::new(0);
const NO_DEVICE_BELIEVED: u64 = time::ns(timeouts::NO_DEVICE_BELIEVED);

/// The engines are this process's.
pub(super) fn own() {
    PID.store(raw::getpid(), Ordering::Relaxed);
}

/// The process that the engines belong to.
pub(super) fn owner() -> u32 {
    PID.load(Ordering::Relaxed)
}

/// This process is a copy, which goes on after the end of the one that made it.
pub(super) fn be_alone() {
    ALONE.store(true, Ordering::Relaxed);
    PID.store(0, Ordering::Relaxed);
}

/// Whether this process is a copy that goes on after the other one's end: its program is gone.
pub(super) fn is_alone() -> bool {
    ALONE.load(Ordering::Relaxed)
}

/// This process has inherited engines by fork.
pub(super) fn inherit() {
    INHERITED.store(true, Ordering::Relaxed);
}

/// The host has no RDMA device, as far as is known.
pub(super) fn note_no_device() {
    NO_DEVICE.set(time::coarse().max(1));
}

/// The program is one of Go, whose processes start programs and end without the calls by which others say so. What that
/// means for queue pairs is not known, so it has none.
pub fn note_go() {
    GO.set(true);
}

/// Whether a device works with memory of this process.
pub fn is_running() -> bool {
    status::count() > 0
}

/// Whether this host has an RDMA device, and this process may use it.
pub fn available() -> bool {
    let may = || !INHERITED.load(Ordering::Relaxed) && !libc_kind::is_musl() && !GO.get();
    status::count() > 0 || (may() && has_device())
}

/// Why this process cannot use RDMA.
pub(super) fn why_unavailable() -> Reason {
    match () {
        () if !has_device() => Reason::OtherHost,
        // The libraries of RDMA are glibc's.
        () if libc_kind::is_musl() => Reason::Musl,
        () if GO.get() => Reason::GoOtherHost,
        () => Reason::OtherHost,
    }
}

/// Whether this host has an RDMA device. That it has none is believed for a while.
fn has_device() -> bool {
    let now = time::coarse();
    let asked = NO_DEVICE.get();
    if asked != 0 && now.wrapping_sub(asked) < NO_DEVICE_BELIEVED {
        return false;
    }
    let there = sysfs::host_has_device();
    if !there {
        NO_DEVICE.set(now.max(1));
    }
    there
}
