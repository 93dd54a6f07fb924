//! What several threads in one instance owe each other: a thread that sleeps hears of what the others change or leave.

use crate::epoll::call::Call;
use crate::epoll::sift::{Polled, sift};
use crate::epoll::subscription::arm_all;
use crate::object::instance::Epoll;
use crate::object::reference::Ref;
use crate::outcome::Outcome;
use core::sync::atomic::Ordering;

/// Sleeps in an instance without anything of ours, in libc, which is a cancellation point. Another thread may
/// add the first of ours meanwhile: `None` is then for [`super::wait::wait`] to go on.
#[inline]
pub(super) fn plain(r: Ref<Epoll>, call: &Call, pass: impl FnOnce() -> i32) -> Option<Outcome> {
    let e = r.obj;
    // SeqCst, and announced before the look: a thread that adds the first registration of ours either is seen by this
    // one or kicks it. A cancelled thread leaves its mark behind, which costs a needless kick.
    e.sleepers.fetch_add(1, Ordering::SeqCst);
    let slept = e.is_plain().then(pass);
    if r.valid() {
        e.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
    let n = slept?;
    if n <= 0 || !r.valid() || e.is_plain() {
        return Some(Outcome::Done(n as isize));
    }
    no_longer(e, call, n)
}

/// Handles what the kernel said in a sleep in which the first registration of ours was added.
#[cold]
fn no_longer(e: &'static Epoll, call: &Call, n: i32) -> Option<Outcome> {
    match sift(e, call, call.events, n, 0) {
        Polled { foreign: 0, .. } => None,
        seen => Some(Outcome::Done(seen.foreign as isize)),
    }
}

/// To be called before a thread leaves the instance: hands over to other threads that sleep there. Subscriptions that it made
/// active would be looked at by nobody, so their peers are to ring; what waits already wakes one of the sleepers, as in
/// the kernel.
pub(super) fn hand_off(e: &'static Epoll) {
    // SeqCst: a thread that announces itself after this look arms everything itself.
    if e.sleepers.load(Ordering::SeqCst) == 0 {
        return;
    }
    let quiet = {
        let _g = e.lock.lock();
        arm_all(e) && e.ready_len.load(Ordering::Relaxed) == 0
    };
    if !quiet {
        e.kick();
    }
}
