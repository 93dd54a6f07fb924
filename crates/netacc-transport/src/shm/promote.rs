//! Queue of offers to promote a TCP connection, between the control socket, which receives them, and the socket layer,
//! which knows the connections.

use crate::shm::Link;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use netacc_sys::{Lock, lock_rank};

/// Number of offers that can wait. A further one is refused, and its connection stays on TCP.
const WAITING: usize = 64;

struct Offer {
    link: AtomicPtr<Link>,
    slot: AtomicU32,
    generation: AtomicU32,
}

static OFFERS: [Offer; WAITING] = [const {
    Offer { link: AtomicPtr::new(core::ptr::null_mut()), slot: AtomicU32::new(0), generation: AtomicU32::new(0) }
}; WAITING];
static COUNT: AtomicU32 = AtomicU32::new(0);
static LOCK: Lock<{ lock_rank::LEAF }> = Lock::new();

/// Queues an offer for the socket layer. While the offer waits, it has a reference to the link.
pub(crate) fn queue(link: &'static Link, slot: u32, generation: u32) {
    let _g = LOCK.lock();
    // This is checked under the lock: if the link ends after this check, `forget` finds the offer that is stored now.
    let place = OFFERS.iter().find(|o| o.link.load(Ordering::Relaxed).is_null()).filter(|_| !link.is_lost());
    match place {
        Some(o) => {
            link.hold();
            o.slot.store(slot, Ordering::Relaxed);
            o.generation.store(generation, Ordering::Relaxed);
            o.link.store(core::ptr::from_ref(link).cast_mut(), Ordering::Relaxed);
            COUNT.fetch_add(1, Ordering::Release);
        }
        None => {
            if let Some(ep) = link.endpoint(slot as usize) {
                ep.side.refuse(generation);
            }
        }
    }
}

/// Whether any offer waits: one load.
#[inline]
pub fn waiting() -> bool {
    COUNT.load(Ordering::Acquire) > 0
}

/// Calls `settle` with every waiting offer (link, slot, generation), and removes those for which it returns true.
pub fn each(mut settle: impl FnMut(&'static Link, u32, u32) -> bool) {
    for o in &OFFERS {
        // The offer is removed while it is handled, so that only one thread settles it.
        let (p, slot, generation) = {
            let _g = LOCK.lock();
            let p = o.link.swap(core::ptr::null_mut(), Ordering::Relaxed);
            (p, o.slot.load(Ordering::Relaxed), o.generation.load(Ordering::Relaxed))
        };
        #[allow(unsafe_code)]
        // SAFETY: the pointer is null or that of a link, which is never freed, and to which the offer has a reference.
        let Some(link) = (unsafe { p.as_ref() }) else { continue };
        COUNT.fetch_sub(1, Ordering::Relaxed);
        if !settle(link, slot, generation) {
            queue(link, slot, generation);
        }
        link.put();
    }
}

/// Removes the offers of a link that has ended with its client: perhaps no thread ever checks them again, and they must
/// not keep their references. The caller has a reference to the link.
pub(crate) fn forget(link: &'static Link) {
    let _g = LOCK.lock();
    for o in &OFFERS {
        if core::ptr::eq(o.link.load(Ordering::Relaxed), link) {
            o.link.store(core::ptr::null_mut(), Ordering::Relaxed);
            COUNT.fetch_sub(1, Ordering::Relaxed);
            if let Some(ep) = link.endpoint(o.slot.load(Ordering::Relaxed) as usize) {
                ep.side.refuse(o.generation.load(Ordering::Relaxed));
            }
            link.put();
        }
    }
}

/// Called in the child of a fork: forgets the offers, which are the parent's.
pub fn after_fork() {
    LOCK.reset();
    for o in &OFFERS {
        o.link.store(core::ptr::null_mut(), Ordering::Relaxed);
    }
    COUNT.store(0, Ordering::Relaxed);
}
