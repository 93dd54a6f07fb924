//! A process that is accelerated no further: it went where what we know of the host is not true, or confined itself so
//! that our system calls may be forbidden. Its new sockets are the kernel's, its listeners are left to it.

use crate::fdtable::{self, Entry, Ref};
use crate::socket::{self, Path, Socket, demote, listen};
use core::sync::atomic::{AtomicU32, Ordering};
use netacc_stats::Reason;

/// The [`Reason`]; 0: accelerated as ever.
static WHY: AtomicU32 = AtomicU32::new(0);

/// Why nothing more is accelerated, if so.
#[inline]
pub fn reason() -> Option<Reason> {
    // Relaxed: whoever changed it knows it; to other threads it is a change at any time.
    match WHY.load(Ordering::Relaxed) {
        0 => None,
        n => Reason::from_u32(n),
    }
}

/// Nothing more is accelerated; connections go on where they are.
pub fn from_here(why: Reason) {
    WHY.store(why as u32, Ordering::Relaxed);
    crate::log!(Info, "from here on connections are the kernel's: {}", why.sentence());
    each(|fd, r| {
        if r.obj.path() == Path::Listener {
            listen::abandon(fd, r.obj);
        }
    });
    socket::create::drop_spares();
    socket::vacant::close_all();
}

/// The process is about to install a filter on system calls (seccomp(2)), which allows what the program needs and
/// knows nothing of us, or to take all descriptors from itself. From now on we need neither.
#[cold]
pub fn confine() {
    from_here(Reason::Confined);
    each(|fd, r| {
        if let Err(e) = demote::demote(fd, r, Reason::Confined) {
            crate::log!(Warn, "fd {fd}: stays in shared memory, which the filter may forbid: {e}");
        }
    });
}

/// Calls `f` for every number of a socket of ours.
pub(crate) fn each(mut f: impl FnMut(i32, Ref<Socket>)) {
    fdtable::each(0, usize::MAX, |fd, e| {
        if let Entry::Socket(r) = e {
            f(fd, r);
        }
    });
}
