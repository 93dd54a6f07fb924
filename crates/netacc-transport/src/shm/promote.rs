//! Queue of offers to promote a TCP connection, between the control socket, which receives them, and the socket layer,
//! which knows the connections.

use crate::num::low_half;
use crate::shm::{Link, ShmEndpoint};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use netacc_sys::{Lock, lock_rank};

/// Number of offers that can wait. A further one is refused, and its connection stays on TCP.
const WAITING: usize = 1024;

/// An offer to promote a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The slot that names the connection and in which it is to go on.
    pub slot: u32,
    /// The generation of the slot.
    pub generation: u32,
    /// What is known of a client in another network namespace; `None` for one in our own.
    pub neighbour: Option<Neighbour>,
}

/// An offer of a client in another network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// The time stamp of the client's SYN.
    pub stamp: u32,
    /// The socket layer's descriptor for the connection that it may be, or -1.
    pub fd: i32,
    /// Whether one of the two sides has found out that this is its connection.
    pub confirmed: bool,
}

/// Names an offer while it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferName {
    /// [`Link::id`].
    pub link: u32,
    /// [`Offer::slot`].
    pub slot: u32,
    /// [`Offer::generation`].
    pub generation: u32,
}

/// A place for an offer. All fields are changed under `LOCK`.
struct Place {
    /// Null: the place is free.
    link: AtomicPtr<Link>,
    slot: AtomicU32,
    generation: AtomicU32,
    /// [`STAMPED`] with the stamp in the lower half; 0: the client is in our network namespace.
    stamp: AtomicU64,
    /// [`Neighbour::fd`] + 1.
    fd: AtomicI32,
    /// [`Neighbour::confirmed`].
    confirmed: AtomicU32,
    /// Not 0 while a thread settles the offer, which then alone may free the place.
    busy: AtomicU32,
    /// Not 0 while nothing is to be done before the client says something else about the offer.
    quiet: AtomicU32,
}

const STAMPED: u64 = 1 << 32;

impl Place {
    const fn new() -> Place {
        Place {
            link: AtomicPtr::new(core::ptr::null_mut()),
            slot: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            stamp: AtomicU64::new(0),
            fd: AtomicI32::new(0),
            confirmed: AtomicU32::new(0),
            busy: AtomicU32::new(0),
            quiet: AtomicU32::new(0),
        }
    }

    fn store(&self, link: &'static Link, offer: Offer) {
        self.slot.store(offer.slot, Ordering::Relaxed);
        self.generation.store(offer.generation, Ordering::Relaxed);
        let stamp = offer.neighbour.map_or(0, |n| STAMPED | u64::from(n.stamp));
        self.stamp.store(stamp, Ordering::Relaxed);
        self.fd.store(0, Ordering::Relaxed);
        self.confirmed.store(0, Ordering::Relaxed);
        self.busy.store(0, Ordering::Relaxed);
        self.quiet.store(0, Ordering::Relaxed);
        self.link.store(core::ptr::from_ref(link).cast_mut(), Ordering::Relaxed);
        HELD.fetch_add(1, Ordering::Relaxed);
        COUNT.fetch_add(1, Ordering::Release);
    }

    fn set_quiet(&self, quiet: bool) {
        match (self.quiet.swap(quiet.into(), Ordering::Relaxed) != 0, quiet) {
            (false, true) => drop(COUNT.fetch_sub(1, Ordering::Relaxed)),
            (true, false) => drop(COUNT.fetch_add(1, Ordering::Release)),
            _ => {}
        }
    }

    fn load(&self) -> Offer {
        let stamp = self.stamp.load(Ordering::Relaxed);
        let neighbour = Neighbour {
            stamp: low_half(stamp),
            fd: self.fd.load(Ordering::Relaxed) - 1,
            confirmed: self.confirmed.load(Ordering::Relaxed) != 0,
        };
        Offer {
            slot: self.slot.load(Ordering::Relaxed),
            generation: self.generation.load(Ordering::Relaxed),
            neighbour: (stamp & STAMPED != 0).then_some(neighbour),
        }
    }

    fn holds(&self, link: &'static Link, slot: u32, generation: u32) -> bool {
        core::ptr::eq(self.link.load(Ordering::Relaxed), link)
            && self.slot.load(Ordering::Relaxed) == slot
            && self.generation.load(Ordering::Relaxed) == generation
    }

    #[allow(unsafe_code)]
    fn link(&self) -> Option<&'static Link> {
        // SAFETY: the pointer is null or that of a link, which is never freed, and to which the offer has a reference.
        unsafe { self.link.load(Ordering::Relaxed).as_ref() }
    }

    /// Notes what a thread has done with the offer. True: the place is free, and the offer's reference to its link is the
    /// caller's.
    fn settled(&self, link: &'static Link, offer: Offer, settled: Settled) -> bool {
        let _g = LOCK.lock();
        self.busy.store(0, Ordering::Relaxed);
        match settled {
            Settled::Done => {
                self.free();
                true
            }
            // `forget` has left the offer to this thread.
            Settled::Waits | Settled::For(_) if link.is_lost() => {
                refuse(link, offer);
                self.free();
                true
            }
            Settled::Waits => false,
            Settled::For(fd) => {
                self.fd.store(fd + 1, Ordering::Relaxed);
                // The client may have said more meanwhile.
                self.set_quiet(self.load().neighbour.map(|n| n.confirmed) == offer.neighbour.map(|n| n.confirmed));
                false
            }
        }
    }

    /// Frees the place. The caller gives up the offer's reference to its link afterwards; if that may be the last one,
    /// without `LOCK`.
    fn free(&self) {
        self.set_quiet(true);
        self.link.store(core::ptr::null_mut(), Ordering::Relaxed);
        HELD.fetch_sub(1, Ordering::Relaxed);
    }
}

netacc_sys::tables! {
    static OFFERS: [Place; WAITING] = [const { Place::new() }; WAITING];
}
/// Whether any place was ever used.
static USED: AtomicBool = AtomicBool::new(false);
/// Number of offers that are to be looked at.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// Number of offers in all. Under `LOCK`, which readers need not take: they only stop early by it.
static HELD: AtomicU32 = AtomicU32::new(0);
static LOCK: Lock<{ lock_rank::LEAF }> = Lock::new();

/// Queues an offer for the socket layer. While the offer waits, it has a reference to the link.
pub(crate) fn queue(link: &'static Link, offer: Offer) {
    USED.store(true, Ordering::Relaxed);
    let _g = LOCK.lock();
    // This is checked under the lock: if the link ends after this check, `forget` finds the offer that is stored now.
    let place = OFFERS.iter().find(|o| o.link.load(Ordering::Relaxed).is_null()).filter(|_| !link.is_lost());
    match place {
        Some(o) => {
            link.hold();
            o.store(link, offer);
        }
        None => refuse(link, offer),
    }
}

/// Notes that the client of a waiting offer has found out that the connection is its own, or has withdrawn the offer.
pub(crate) fn confirm(link: &'static Link, slot: u32, generation: u32) {
    let _g = LOCK.lock();
    if let Some(o) = OFFERS.iter().find(|o| o.holds(link, slot, generation)) {
        o.confirmed.store(1, Ordering::Relaxed);
        o.set_quiet(false);
    }
}

/// The places in use, as far as they were when the call began.
fn held() -> impl Iterator<Item = &'static Place> {
    let most = HELD.load(Ordering::Relaxed) as usize;
    OFFERS.iter().filter(|o| !o.link.load(Ordering::Relaxed).is_null()).take(most)
}

fn refuse(link: &'static Link, offer: Offer) {
    if let Some(ep) = link.endpoint(offer.slot as usize) {
        ep.side.refuse(offer.generation);
    }
}

/// Whether any offer is to be looked at: one load.
#[inline]
pub fn waiting() -> bool {
    COUNT.load(Ordering::Acquire) > 0
}

/// What becomes of an offer that a thread has looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It is done with.
    Done,
    /// It waits.
    Waits,
    /// It may be for the connection with this descriptor, and waits until the client says more.
    For(i32),
}

/// Calls `settle` with every offer that is to be looked at and its link. Each is settled by one thread at a time, without
/// a lock.
pub fn each(mut settle: impl FnMut(&'static Link, Offer) -> Settled) {
    for o in held().filter(|o| o.quiet.load(Ordering::Relaxed) == 0) {
        let (link, offer) = {
            let _g = LOCK.lock();
            let is_free = o.busy.load(Ordering::Relaxed) == 0 && o.quiet.load(Ordering::Relaxed) == 0;
            let Some(link) = o.link().filter(|_| is_free) else { continue };
            o.busy.store(1, Ordering::Relaxed);
            (link, o.load())
        };
        let settled = settle(link, offer);
        if o.settled(link, offer, settled) {
            link.put();
        }
    }
}

/// Calls `tell` with each waiting offer that may be for the connection `fd`, and its endpoint, under a lock: the slot is
/// not used for another connection meanwhile.
pub fn each_for(fd: i32, mut tell: impl FnMut(OfferName, &'static ShmEndpoint)) {
    let _g = LOCK.lock();
    for o in held().filter(|o| o.fd.load(Ordering::Relaxed) == fd + 1) {
        let Offer { slot, generation, .. } = o.load();
        if let Some(link) = o.link()
            && let Some(ep) = link.endpoint(slot as usize).filter(|ep| !ep.side.is_live())
        {
            tell(OfferName { link: link.id(), slot, generation }, ep);
        }
    }
}

/// Answers the offer of this name, which may be for the connection `fd`: it is confirmed or refused. It has to be looked
/// at again then ([`each`]).
pub fn answer(fd: i32, name: OfferName, confirmed: bool) {
    let _g = LOCK.lock();
    for o in held().filter(|o| o.fd.load(Ordering::Relaxed) == fd + 1) {
        let offer = o.load();
        if let Some(link) = o.link().filter(|link| link.id() == name.link)
            && o.holds(link, name.slot, name.generation)
        {
            if !confirmed {
                refuse(link, offer);
            }
            o.confirmed.store(1, Ordering::Relaxed);
            o.set_quiet(false);
        }
    }
}

/// Removes the offers of a link that has ended with its client: perhaps no thread ever checks them again, and they must
/// not keep their references. The caller has a reference to the link.
pub(crate) fn forget(link: &'static Link) {
    let _g = LOCK.lock();
    for o in &OFFERS {
        if core::ptr::eq(o.link.load(Ordering::Relaxed), link) && o.busy.load(Ordering::Relaxed) == 0 {
            refuse(link, o.load());
            o.free();
            link.put();
        }
    }
}

/// Called in the child of a fork: forgets the offers, which are the parent's.
pub fn after_fork() {
    // The places lie on several pages, and the child pays for each that it looks at.
    if !USED.load(Ordering::Relaxed) {
        return;
    }
    for o in &OFFERS {
        o.link.store(core::ptr::null_mut(), Ordering::Relaxed);
        o.busy.store(0, Ordering::Relaxed);
        o.quiet.store(0, Ordering::Relaxed);
    }
    COUNT.store(0, Ordering::Relaxed);
    HELD.store(0, Ordering::Relaxed);
}
