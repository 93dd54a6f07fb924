//! Cooperation of several threads in one instance: a sleeping thread is woken for changes that others make, or for
//! events that they leave.

use crate::epoll::call::Call;
use crate::epoll::sift::{Polled, sift};
use crate::epoll::subscription::arm_all;
use crate::object::instance::Epoll;
use crate::object::reference::Ref;
use crate::outcome::Outcome;
use core::sync::atomic::Ordering;
use netacc_sys::visits;

/// Sleeps by libc's call, which is a cancellation point, in an instance without accelerated registrations. `None`:
/// another thread has added the first one meanwhile, and [`super::wait::wait`] has to continue.
#[inline]
pub(super) fn plain(r: Ref<Epoll>, call: &Call, pass: impl FnOnce() -> i32) -> Option<Outcome> {
    let e = r.obj;
    // SeqCst, and counted before the check: this thread sees the first accelerated registration, or the thread that
    // adds it kicks this one. A thread that is cancelled, or leaves by a jump out of a handler, stays counted, which costs
    // needless kicks.
    e.sleepers.fetch_add(1, Ordering::SeqCst);
    let slept = e.is_plain().then(|| visits::with_handlers(pass));
    if r.valid() {
        e.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
    let n = slept?;
    if n <= 0 || !r.valid() || e.is_plain() {
        return Some(Outcome::Done(n as isize));
    }
    no_longer(e, call, n)
}

/// Handles the kernel's events of a sleep during which the first accelerated registration was added.
#[cold]
fn no_longer(e: &'static Epoll, call: &Call, n: i32) -> Option<Outcome> {
    match sift(e, call, call.events, n, 0) {
        Polled { foreign: 0, .. } => None,
        seen => Some(Outcome::Done(seen.foreign as isize)),
    }
}

/// To be called before a thread leaves the instance: hands over to other threads that sleep there. No thread would
/// check the subscriptions that it made active, so they are armed; events that wait already wake one of the sleepers,
/// as in the kernel.
pub(super) fn hand_off(e: &'static Epoll) {
    // SeqCst: a thread that is counted after this check arms everything itself.
    if e.sleepers.load(Ordering::SeqCst) == 0 {
        return;
    }
    let quiet = {
        let _g = e.lock.lock();
        arm_all(e) && e.ready_len.get() == 0
    };
    if !quiet {
        e.kick();
    }
}
