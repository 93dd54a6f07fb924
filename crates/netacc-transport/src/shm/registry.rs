//! The list of all links of this process, for operations on all of them or on the other side of one.

use crate::shm::Link;
use crate::shm::side::Side;
use core::sync::atomic::Ordering;
use netacc_sys::AtomicRef;

/// The first of all links that this process ever had, in use or not. The list only grows, since the memory of links is
/// recycled.
static ALL: AtomicRef<Link> = AtomicRef::none();

fn all() -> impl Iterator<Item = &'static Link> {
    ALL.list(|link| &link.next_listed)
}

impl Link {
    /// Adds the link to the list, unless its memory was used before and is in it.
    pub(super) fn list(&'static self) {
        if self.listed.swap(1, Ordering::Relaxed) != 0 {
            return;
        }
        ALL.push(self, &self.next_listed);
    }
}

/// The links of this process, as a client, to the listener that `link` leads to, `link` among them. The caller has a
/// reference to `link` alone, and takes what it reads of the others for a hint: one without a user has no segment.
pub(super) fn to_listener_of(link: &'static Link) -> impl Iterator<Item = &'static Link> {
    let cookie = link.listener.cookie.load(Ordering::Relaxed);
    all().filter(move |l| {
        let same = cookie != 0 && l.listener.cookie.load(Ordering::Relaxed) == cookie;
        core::ptr::eq(*l, link) || (same && l.side() == Side::Client && !l.is_lost() && !l.is_inherited())
    })
}

/// Calls `f` with each link that has a user, and holds a reference to the link during the call.
pub(super) fn each_used(mut f: impl FnMut(&'static Link)) {
    for link in all() {
        if link.hold_if_used() {
            f(link);
            link.put();
        }
    }
}
