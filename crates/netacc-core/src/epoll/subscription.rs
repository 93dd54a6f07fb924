//! Subscriptions of epoll instances: claims on the ready sets of links.

use crate::epoll::cookies::{self, Kind, cookie};
use crate::object::instance::{Epoll, Registration, STRUCTURE};
use crate::object::reference::at;
use crate::object::subscription::Subscription;
use core::sync::atomic::Ordering;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::raw;
use netacc_sys::signals::Blocked;
use netacc_sys::slab::Slab;
use netacc_transport::shm::slots::CONTROL_SLOT;
use netacc_transport::shm::{Link, ShmEndpoint};

static WATCHES: Slab<Subscription> = Slab::new();

/// The instance's subscription to `link`, which is made if there is none. Under `STRUCTURE`.
pub(crate) fn get(e: &'static Epoll, link: &'static Link) -> Result<&'static Subscription> {
    if let Some(w) = find(e, link) {
        return Ok(w);
    }
    let w = WATCHES.alloc().ok_or(Errno::NOMEM)?;
    cookies::enter(w).inspect_err(|_| WATCHES.release(w))?;
    // Before the ready set is taken: see [`Link::is_idle`].
    link.hold();
    let unused = || {
        link.put();
        WATCHES.release(w);
    };
    let ch = link.open_ready_set().inspect_err(|_| unused())?;
    if let Err(err) = enter(e, w, link, ch) {
        let _ = e.enter(libc::EPOLL_CTL_DEL, link.wakers().fd(ch), 0, 0);
        link.close_ready_set(ch);
        unused();
        return Err(err);
    }
    // Under the lock, so that a late event for an earlier use of the object finds it either unused or complete.
    let _g = e.lock.lock();
    w.epoll.set(Some(e));
    w.ready_set.set(ch);
    w.users.set(0);
    w.remote.set(0);
    w.active.set(false);
    w.link.store(Some(link));
    w.next.set(e.watches.get());
    e.watches.set(Some(w));
    activate(e, w);
    Ok(w)
}

/// Enters the waker and the control socket of the link into the kernel's set.
fn enter(e: &Epoll, w: &Subscription, link: &Link, ready_set: u32) -> Result<()> {
    let edge = (libc::EPOLLIN | libc::EPOLLET) as u32;
    e.enter(libc::EPOLL_CTL_ADD, link.wakers().fd(ready_set), edge, cookie(Kind::Waker, w))?;
    e.enter(libc::EPOLL_CTL_ADD, link.control.fd(), edge, cookie(Kind::Control, w))
}

/// Moves the entries of the subscriptions from the set `from` to the instance's new one. Subscriptions that a child has
/// inherited from its parent are dropped. Under `STRUCTURE`.
pub(super) fn move_all(e: &'static Epoll, from: Option<i32>) {
    for w in watches(e) {
        let Some(link) = w.link().filter(|l| !l.is_inherited()) else {
            drop_subscription(e, w);
            continue;
        };
        let ready_set = w.ready_set.get();
        if let Some(from) = from {
            for fd in [link.wakers().fd(ready_set), link.control.fd()] {
                let _ = raw::epoll_ctl(from, libc::EPOLL_CTL_DEL, fd, 0, 0);
            }
        }
        let _ = enter(e, w, link, ready_set);
        let _g = e.lock.lock();
        activate(e, w);
    }
}

/// The subscriptions of an instance, each of which may be dropped when it is returned. Under `STRUCTURE`.
fn watches(e: &Epoll) -> impl Iterator<Item = &'static Subscription> + use<> {
    e.watches.list(|w| &w.next)
}

/// The subscriptions on the active list. Under the instance's lock.
pub(super) fn active(e: &Epoll) -> impl Iterator<Item = &'static Subscription> + use<> {
    e.active.list(|w| &w.next_active)
}

fn find(e: &Epoll, link: &Link) -> Option<&'static Subscription> {
    watches(e).find(|w| w.link.is(link))
}

/// Puts a subscription on the active list. Under the instance's lock.
pub(crate) fn activate(e: &Epoll, w: &'static Subscription) {
    if !w.active.replace(true) {
        w.next_active.set(e.active.get());
        e.active.set(Some(w));
    }
}

/// Puts a subscription on the active list, unless it was dropped meanwhile and belongs to another instance or to none.
pub(crate) fn activate_own(e: &Epoll, w: &'static Subscription) {
    let _g = e.lock.lock();
    if w.epoll.is(e) {
        activate(e, w);
    }
}

/// Puts the instance's subscription to `link`, if there is one, on the active list. Under `STRUCTURE`.
pub(crate) fn reactivate(e: &'static Epoll, link: &'static Link) {
    if let Some(w) = find(e, link) {
        let _g = e.lock.lock();
        activate(e, w);
    }
}

/// Arms every active subscription and removes it from the active list: from now on its peer writes the waker. False:
/// one of them has bits already. Under the instance's lock.
pub(crate) fn arm_all(e: &Epoll) -> bool {
    let mut cell = &e.active;
    let mut quiet = true;
    while let Some(w) = cell.get() {
        let ready_set = w.link().and_then(|l| l.my_ready_set(w.ready_set.get()));
        if ready_set.is_some_and(|c| !c.arm()) {
            quiet = false;
            cell = &w.next_active;
        } else {
            cell.set(w.next_active.get());
            w.active.set(false);
        }
    }
    quiet
}

/// Whether any active subscription has bits. Under the instance's lock.
pub(crate) fn any_bits(e: &Epoll) -> bool {
    let ready_set = |w: &Subscription| w.link().and_then(|l| l.my_ready_set(w.ready_set.get()));
    active(e).any(|w| ready_set(w).is_some_and(|c| c.any()))
}

/// Whether an endpoint reports to a registration by a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attached {
    /// The endpoint reports to the registration.
    Here,
    /// The endpoint reports to another instance, and can report to only one.
    Elsewhere,
    /// The endpoint reports to no instance: no ready set, descriptor or memory is left for a subscription, or the link
    /// is the parent's.
    Nowhere,
}

/// The registration that an endpoint reports to, which is the first of a chain of aliases.
pub(super) fn first_of(ep: &ShmEndpoint) -> Option<&'static Registration> {
    at(ep.registration.load(Ordering::Acquire))
}

/// Makes `ep` report to `reg` by a subscription of `e`. Under `STRUCTURE`.
pub(crate) fn attach(e: &'static Epoll, ep: &'static ShmEndpoint, reg: &'static Registration) -> Attached {
    if let Some(first) = first_of(ep) {
        if !first.epoll.is(e) {
            return Attached::Elsewhere;
        }
        let _g = e.lock.lock();
        let mut last = first;
        // A listener's registration is attached to each of its links, and has one chain.
        while !core::ptr::eq(last, reg) {
            last = last.alias.get().unwrap_or_else(|| {
                last.alias.set(Some(reg));
                reg
            });
        }
        return Attached::Here;
    }
    let Ok(w) = get(e, ep.side.link()) else { return Attached::Nowhere };
    w.users.add(1);
    if ep.side.is_remote() {
        count_remote(e, w, 1);
    }
    ep.registration.store(core::ptr::from_ref(reg) as usize, Ordering::Release);
    ep.subscribe(w.ready_set.get());
    Attached::Here
}

/// Notes the instance that other threads of this process wake for a connection that came by a fork, which no ready set
/// reports. The first one counts. Under `STRUCTURE`.
pub(crate) fn note_instance(ep: &ShmEndpoint, reg: &'static Registration) {
    // Release: a thread that finds the registration finds its instance.
    let _ =
        ep.registration.compare_exchange(0, core::ptr::from_ref(reg) as usize, Ordering::Release, Ordering::Relaxed);
}

/// Wakes the threads that sleep in the instance of [`note_instance`]. Takes no lock.
pub(crate) fn kick(ep: &ShmEndpoint) {
    // The objects are never freed. If the registration is used anew just now, a wrong instance is woken, which does no harm.
    if let Some(e) = first_of(ep).and_then(|first| first.epoll.get()) {
        e.kick();
    }
}

/// Whether `e` is the instance of [`note_instance`].
pub(crate) fn is_noted(e: &Epoll, ep: &ShmEndpoint) -> bool {
    first_of(ep).is_some_and(|first| first.epoll.is(e))
}

/// Undoes [`attach`] and [`note_instance`]. Under `STRUCTURE`.
pub(crate) fn detach(e: &'static Epoll, ep: &'static ShmEndpoint, reg: &'static Registration) {
    let Some(first) = first_of(ep) else { return };
    if !core::ptr::eq(first, reg) {
        if first.epoll.is(e) {
            let _g = e.lock.lock();
            first.alias.take_out(reg, |reg| &reg.alias);
        }
        return;
    }
    // The registration's alias, if there is one, replaces it. The rest of the chain is left unchanged, since a
    // listener's other links are detached after this one.
    let heir = first.alias.get();
    ep.registration.store(heir.map_or(0, |heir| core::ptr::from_ref(heir) as usize), Ordering::Release);
    if heir.is_some() {
        return;
    }
    ep.subscribe(0);
    if let Some(w) = find(e, ep.side.link()) {
        w.users.set(w.users.get().saturating_sub(1));
        if ep.side.is_remote() {
            count_remote(e, w, -1);
        }
        drop_if_useless(e, w);
    }
}

/// Drops a subscription without users to a link that will bring no more connections.
pub(crate) fn drop_if_useless(e: &'static Epoll, w: &'static Subscription) {
    // A subscription without a link, or of another instance, was dropped before, and the object may be used again.
    let ours = w.epoll.is(e);
    let dead = w.link().is_some_and(|l| l.is_lost() || l.inherited.load(Ordering::Relaxed) != 0);
    if ours && dead && w.users.get() == 0 {
        drop_subscription(e, w);
    }
}

/// Adds `by` to the connections over RDMA that report by the subscription. Under `STRUCTURE`. A thread that is about to
/// sleep takes the number as a hint.
fn count_remote(e: &Epoll, w: &Subscription, by: i32) {
    for count in [&w.remote, &e.remote] {
        count.set(count.get().saturating_add_signed(by));
    }
}

fn drop_subscription(e: &'static Epoll, w: &'static Subscription) {
    count_remote(e, w, -w.remote.get().cast_signed());
    e.watches.take_out(w, |w| &w.next);
    let link = {
        let _g = e.lock.lock();
        e.active.take_out(w, |w| &w.next_active);
        w.active.set(false);
        // Done under the lock, so that a thread with an event for the subscription finds it unused.
        w.epoll.set(None);
        w.link.swap(None)
    };
    if let Some(link) = link {
        let ch = w.ready_set.get();
        let waker = link.wakers().fd(ch);
        if waker >= 0 {
            let _ = e.enter(libc::EPOLL_CTL_DEL, waker, 0, 0);
        }
        let control = link.control.fd();
        if control >= 0 {
            let _ = e.enter(libc::EPOLL_CTL_DEL, control, 0, 0);
        }
        link.close_ready_set(ch);
        link.put();
    }
    WATCHES.release(w);
}

/// Drops all subscriptions of an instance that ends, or is left to the kernel. Under `STRUCTURE`.
pub(crate) fn drop_all(e: &'static Epoll) {
    while let Some(w) = e.watches.get() {
        drop_subscription(e, w);
    }
}

/// To be called when a link leaves its listener or pool: instances that were subscribed only for its connects release
/// it.
pub fn link_gone(link: &'static Link) {
    // Rare and long: see `Blocked`.
    let _b = Blocked::all();
    let _s = STRUCTURE.lock();
    if let Some(q) = link.endpoint(CONTROL_SLOT)
        && let Some(reg) = first_of(q)
        && let Some(e) = reg.epoll.get()
    {
        detach(e, q, reg);
    }
}
