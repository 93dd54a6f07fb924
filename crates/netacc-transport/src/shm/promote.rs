//! Queue of offers to promote a TCP connection, between the control socket, which receives them, and the socket layer,
//! which knows the connections.

use crate::shm::{Link, ShmEndpoint};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use netacc_sys::{Locked, lock_rank};

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

/// A place for an offer.
#[derive(Clone, Copy)]
struct Place {
    /// `None`: the place is free.
    link: Option<&'static Link>,
    slot: u32,
    generation: u32,
    /// Whether the client is in another network namespace, so that `neighbour` says something.
    is_neighbours: bool,
    neighbour: Neighbour,
    /// Set while a thread settles the offer, which then alone may free the place.
    busy: bool,
    /// Set while nothing is to be done before the client says something else about the offer.
    quiet: bool,
}

/// A free place, all of whose bits are zero, as those of the table have to be.
const FREE: Place = Place {
    link: None,
    slot: 0,
    generation: 0,
    is_neighbours: false,
    neighbour: Neighbour { stamp: 0, fd: 0, confirmed: false },
    busy: false,
    quiet: false,
};

impl Place {
    fn of(link: &'static Link, offer: Offer) -> Place {
        let Offer { slot, generation, neighbour } = offer;
        let stamp = neighbour.map_or(0, |n| n.stamp);
        let known = Neighbour { stamp, fd: -1, confirmed: false };
        Place { link: Some(link), slot, generation, is_neighbours: neighbour.is_some(), neighbour: known, ..FREE }
    }

    fn offer(&self) -> Offer {
        let neighbour = self.is_neighbours.then_some(self.neighbour);
        Offer { slot: self.slot, generation: self.generation, neighbour }
    }

    fn set_quiet(&mut self, quiet: bool) {
        match (core::mem::replace(&mut self.quiet, quiet), quiet) {
            (false, true) => drop(COUNT.fetch_sub(1, Ordering::Relaxed)),
            (true, false) => drop(COUNT.fetch_add(1, Ordering::Release)),
            _ => {}
        }
    }

    fn confirm(&mut self) {
        self.neighbour.confirmed = true;
        self.set_quiet(false);
    }

    fn is_on(&self, link: &'static Link) -> bool {
        self.link.is_some_and(|l| core::ptr::eq(l, link))
    }

    fn holds(&self, link: &'static Link, slot: u32, generation: u32) -> bool {
        self.is_on(link) && self.slot == slot && self.generation == generation
    }
}

/// All offers.
#[derive(Clone, Copy)]
struct Offers {
    /// Number of places in use. A search ends behind the last of them, since each page of the table costs a page fault.
    held: usize,
    places: [Place; WAITING],
}

impl Offers {
    /// The places in use.
    fn held(&mut self) -> impl Iterator<Item = &mut Place> {
        self.places.iter_mut().filter(|o| o.link.is_some()).take(self.held)
    }

    /// The offers that may be for the connection `fd`, each with its link.
    fn held_for(&mut self, fd: i32) -> impl Iterator<Item = (&mut Place, &'static Link)> {
        self.held().filter(move |o| o.neighbour.fd == fd).filter_map(|o| o.link.map(|link| (o, link)))
    }

    /// Notes what a thread has done with the offer of a place. True: the place is free, and the offer's reference to its link
    /// is the caller's.
    fn settle(&mut self, at: usize, link: &'static Link, offer: Offer, settled: Settled) -> bool {
        let Some(o) = self.places.get_mut(at) else { return false };
        o.busy = false;
        match settled {
            Settled::Done => {}
            // `forget` has left the offer to this thread.
            Settled::Waits | Settled::For(_) if link.is_lost() => refuse(link, offer),
            Settled::Waits => return false,
            Settled::For(fd) => {
                o.neighbour.fd = fd;
                // The client may have said more meanwhile.
                o.set_quiet(o.offer().neighbour.map(|n| n.confirmed) == offer.neighbour.map(|n| n.confirmed));
                return false;
            }
        }
        self.free(at);
        true
    }

    /// Frees a place. The caller gives up the offer's reference to its link afterwards; if that may be the last one,
    /// without the lock.
    fn free(&mut self, at: usize) {
        if let Some(o) = self.places.get_mut(at) {
            o.set_quiet(true);
            o.link = None;
            self.held = self.held.saturating_sub(1);
        }
    }
}

netacc_sys::tables! {
    static OFFERS: Locked<{ lock_rank::LEAF }, Offers> = Locked::new(Offers { held: 0, places: [FREE; WAITING] });
}
/// Whether any place was ever used.
static USED: AtomicBool = AtomicBool::new(false);
/// Number of offers that are to be looked at. Written under the lock of the offers; [`waiting`] reads it without.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Queues an offer for the socket layer. While the offer waits, it has a reference to the link.
pub(crate) fn queue(link: &'static Link, offer: Offer) {
    USED.store(true, Ordering::Relaxed);
    let mut offers = OFFERS.lock();
    // This is checked under the lock: if the link ends after this check, `forget` finds the offer that is stored now.
    match offers.places.iter_mut().find(|o| o.link.is_none()).filter(|_| !link.is_lost()) {
        Some(o) => {
            link.hold();
            *o = Place::of(link, offer);
            offers.held += 1;
            COUNT.fetch_add(1, Ordering::Release);
        }
        None => refuse(link, offer),
    }
}

/// Notes that the client of a waiting offer has found out that the connection is its own, or has withdrawn the offer.
pub(crate) fn confirm(link: &'static Link, slot: u32, generation: u32) {
    if let Some(o) = OFFERS.lock().held().find(|o| o.holds(link, slot, generation)) {
        o.confirm();
    }
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
    let (mut next, mut left) = (0, OFFERS.lock().held);
    while let Some((at, link, offer)) = take_due(&mut next, &mut left) {
        let settled = settle(link, offer);
        let is_free = OFFERS.lock().settle(at, link, offer, settled);
        if is_free {
            link.put();
        }
    }
}

/// The first offer that is to be looked at among the `left` ones from place `next` on, with its place and its link, for the
/// calling thread to settle.
fn take_due(next: &mut usize, left: &mut usize) -> Option<(usize, &'static Link, Offer)> {
    let mut offers = OFFERS.lock();
    while *left > 0 {
        let at = *next;
        let o = offers.places.get_mut(at)?;
        *next += 1;
        let Some(link) = o.link else { continue };
        *left -= 1;
        if !o.busy && !o.quiet {
            o.busy = true;
            return Some((at, link, o.offer()));
        }
    }
    None
}

/// Calls `tell` with each waiting offer that may be for the connection `fd`, and its endpoint, under a lock: the slot is
/// not used for another connection meanwhile.
pub fn each_for(fd: i32, mut tell: impl FnMut(OfferName, &'static ShmEndpoint)) {
    for (o, link) in OFFERS.lock().held_for(fd) {
        if let Some(ep) = link.endpoint(o.slot as usize).filter(|ep| !ep.side.is_live()) {
            tell(OfferName { link: link.id(), slot: o.slot, generation: o.generation }, ep);
        }
    }
}

/// Answers the offer of this name, which may be for the connection `fd`: it is confirmed or refused. It has to be looked
/// at again then ([`each`]).
pub fn answer(fd: i32, name: OfferName, confirmed: bool) {
    for (o, link) in OFFERS.lock().held_for(fd) {
        if link.id() == name.link && o.holds(link, name.slot, name.generation) {
            if !confirmed {
                refuse(link, o.offer());
            }
            o.confirm();
        }
    }
}

/// Removes the offers of a link that has ended with its client: perhaps no thread ever checks them again, and they must
/// not keep their references. The caller has a reference to the link.
pub(crate) fn forget(link: &'static Link) {
    let mut offers = OFFERS.lock();
    for at in 0..WAITING {
        if let Some(o) = offers.places.get(at).filter(|o| o.is_on(link) && !o.busy) {
            refuse(link, o.offer());
            offers.free(at);
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
    COUNT.store(0, Ordering::Relaxed);
    // A child finds the lock free. In a copy that goes on with the engines a thread of the process may still seem to hold it.
    if let Some(mut offers) = OFFERS.try_lock() {
        offers.held = 0;
        offers.places.fill(FREE);
    }
}
