//! Calls that go on after another thread has closed the last number of their connection.
//!
//! In the kernel such a call has the file until it returns. Here it may have to be made anew meanwhile, on another path, and the
//! number would lead to nothing then, or to another file. So it goes on with the object, which it pins, and by the number
//! that was [kept](crate::object::kept).

use crate::conn::pin::Waiting;
use crate::conn::{candidate, transfer};
use crate::object::reference::Ref;
use crate::object::socket::{NONBLOCK, Socket};
use crate::outcome::Outcome;
use crate::wait::sleep;
use core::sync::atomic::{AtomicU64, Ordering};
use netacc_sys::errno::{Answer, Errno, Result};
use netacc_sys::time::Deadline;
use netacc_transport::Iov;

/// Whether the result of a call is that it is to be made anew or by the kernel, for which its number is no longer of use.
#[inline]
pub(super) fn is_due(done: Outcome, call: &Waiting) -> bool {
    matches!(done, Outcome::Pass | Outcome::Anew { .. }) && call.held().is_some_and(|r| r.obj.kept.fd() >= 0)
}

/// Goes on with a call that has moved nothing.
#[cold]
pub(super) fn go_on(call: &mut Waiting, iov: &mut Iov<'_>, (flags, write): (i32, bool)) -> Outcome {
    let mut done = Outcome::ANEW;
    while is_due(done, call)
        && let Some((r, fd)) = call.held().map(|r| (r, r.obj.kept.fd()))
    {
        done = match (r.obj.ring(), r.obj.is_candidate()) {
            (Some(ep), _) => transfer::make(r, ep, iov, (flags, write), call).into(),
            (None, true) => candidate::make(fd, r, iov, (flags, write), call),
            (None, false) => {
                let limit = if write { &r.obj.sndtimeo } else { &r.obj.rcvtimeo };
                let events = if write { libc::POLLOUT } else { libc::POLLIN };
                match wait(r, fd, flags, events, call.until(limit)) {
                    Ok(()) => concluded(candidate::by_kernel(fd, iov, flags, write), limit),
                    Err(fail) => fail.into(),
                }
            }
        };
    }
    done
}

fn concluded(done: Result<usize>, limit: &AtomicU64) -> Outcome {
    match done {
        Ok(n) => Outcome::Done(n as isize),
        Err(e) => candidate::after_kernel(limit.load(Ordering::Relaxed), e),
    }
}

/// Waits for what the call waits for, before the kernel makes it: a thread in a call of the kernel's would not hear of an
/// operator. It does not come out of the library, since the call could not be made anew there.
fn wait(r: Ref<Socket>, fd: i32, flags: i32, events: i16, until: Deadline) -> Answer<()> {
    if !r.valid() {
        return Err(Errno::BADF.into());
    }
    if flags & libc::MSG_DONTWAIT != 0 || r.obj.has(NONBLOCK) {
        return Ok(());
    }
    sleep::for_kernel(Some(fd), fd, events, until, false).map(drop)
}
