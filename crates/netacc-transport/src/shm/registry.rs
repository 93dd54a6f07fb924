//! The list of all links of this process, for operations on all of them or on the other side of one.

use crate::shm::Link;
use crate::shm::side::Side;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

/// The first of all links that this process ever had, in use or not. The list only grows, since the memory of links is
/// recycled.
static ALL: AtomicPtr<Link> = AtomicPtr::new(ptr::null_mut());

#[allow(unsafe_code)]
fn at(p: &AtomicPtr<Link>) -> Option<&'static Link> {
    // SAFETY: the pointer is null or that of a link, which is never freed. Acquire: the link's `next_listed` was stored
    // before the link was listed.
    unsafe { p.load(Ordering::Acquire).as_ref() }
}

impl Link {
    /// Adds the link to the list, unless its memory was used before and is in it.
    pub(super) fn list(&'static self) {
        if self.listed.swap(1, Ordering::Relaxed) != 0 {
            return;
        }
        let mut first = ALL.load(Ordering::Relaxed);
        loop {
            self.next_listed.store(first, Ordering::Relaxed);
            let this = ptr::from_ref(self).cast_mut();
            // Release: a reader that finds the link finds the next one.
            match ALL.compare_exchange_weak(first, this, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => first = now,
            }
        }
    }
}

/// The links of this process, as a client, to the listener that `link` leads to, `link` among them. The caller has a
/// reference to `link` alone, and takes what it reads of the others for a hint: one without a user has no segment.
pub(super) fn to_listener_of(link: &'static Link) -> impl Iterator<Item = &'static Link> {
    let cookie = link.listener.cookie.load(Ordering::Relaxed);
    let all = core::iter::successors(at(&ALL), |l| at(&l.next_listed));
    all.filter(move |l| {
        let same = cookie != 0 && l.listener.cookie.load(Ordering::Relaxed) == cookie;
        core::ptr::eq(*l, link) || (same && l.side() == Side::Client && !l.is_lost() && !l.is_inherited())
    })
}

/// Calls `f` with each link that has a user, and holds a reference to the link during the call.
pub(super) fn each_used(mut f: impl FnMut(&'static Link)) {
    let mut next = at(&ALL);
    while let Some(link) = next {
        next = at(&link.next_listed);
        if link.hold_if_used() {
            f(link);
            link.put();
        }
    }
}
