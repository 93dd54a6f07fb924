//! Listeners in epoll instances: the kernel's listener, the rendezvous, and the connect queues of the links.

use crate::epoll::cookies::{Kind, cookie};
use crate::epoll::ready::{enqueue, touch};
use crate::epoll::registration::each_registration;
use crate::epoll::subscription::{self, Attached, attach};
use crate::object::instance::{Epoll, Registration, STRUCTURE};
use crate::object::listener::Listener;
use crate::object::socket::Socket;
use crate::object::source::Source;
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLLET, EPOLLEXCLUSIVE, EPOLLIN};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::signals::Blocked;
use netacc_transport::shm::Link;
use netacc_transport::shm::slots::CONTROL_SLOT;

pub(super) fn listener_events(events: u32) -> u32 {
    EPOLLIN as u32 | events & (EPOLLEXCLUSIVE | EPOLLET) as u32
}

/// Enters the kernel's listener and the rendezvous into the kernel's set; the links' queues report by subscriptions.
pub(super) fn watch_listener(e: &'static Epoll, reg: &'static Registration, fd: i32, s: &'static Socket) -> Result<()> {
    let Some(l) = s.listener() else { return Err(Errno::BADF) };
    l.note_polled(s);
    let events = listener_events(reg.events.get());
    let exclusive = events & EPOLLEXCLUSIVE as u32;
    reg.set_source(e, Source::Listener);
    e.enter(EPOLL_CTL_ADD, fd, events, cookie(Kind::TcpListener, reg))
        .inspect_err(|_| reg.set_source(e, Source::Nothing))?;
    let rendezvous = EPOLLIN as u32 | exclusive;
    e.enter(EPOLL_CTL_ADD, l.rendezvous_fd(), rendezvous, cookie(Kind::Rendezvous, reg))
        // Another number of this listener is registered here, and its entry serves both numbers.
        .or_else(|err| if err == Errno::EXIST { Ok(()) } else { Err(err) })?;
    for g in l.hellos().chain(Some(l.entrance.fd()).filter(|fd| *fd >= 0)) {
        let _ = e.enter(EPOLL_CTL_ADD, g, EPOLLIN as u32, cookie(Kind::Rendezvous, reg));
    }
    let mut unheard = false;
    l.each_link(|link| {
        if let Some(q) = link.endpoint(CONTROL_SLOT) {
            let attached = attach(e, q, reg);
            unheard |= attached == Attached::Nowhere && !link.is_inherited();
        }
    });
    each_registration(s, |other, _| unheard |= !core::ptr::eq(other, e));
    if unheard {
        each_registration(s, poll_queues);
    }
    touch(e, reg);
    Ok(())
}

/// Marks a listener whose connect queues cannot report to every instance in which it is registered. Such a queue
/// reports to one instance by its subscription, in which perhaps no thread waits; or there are no resources for a
/// subscription. So each instance checks the queues in every round, and a thread that sleeps in it registers with them.
fn poll_queues(e: &'static Epoll, reg: &'static Registration) {
    if reg.source() == Source::Queues {
        return;
    }
    reg.set_source(e, Source::Queues);
    // A thread that is already asleep there is not registered, so it is woken.
    e.kick();
}

/// Undoes [`watch_listener`]. Under `STRUCTURE`.
pub(super) fn unhear_listener(e: &'static Epoll, reg: &'static Registration, s: &'static Socket, l: &'static Listener) {
    // Another number of this listener that is registered here takes the entry over.
    let mut heir = None;
    each_registration(s, |other, r| {
        if core::ptr::eq(other, e) && !core::ptr::eq(r, reg) {
            heir = Some(r);
        }
    });
    for fd in l.hellos().chain(l.doors()) {
        let _ = e.enter(EPOLL_CTL_DEL, fd, 0, 0);
        if let Some(heir) = heir {
            let exclusive = heir.events.get() & EPOLLEXCLUSIVE as u32;
            let _ = e.enter(EPOLL_CTL_ADD, fd, EPOLLIN as u32 | exclusive, cookie(Kind::Rendezvous, heir));
        }
    }
    l.each_link(|link| {
        if let Some(q) = link.endpoint(CONTROL_SLOT) {
            subscription::detach(e, q, reg);
        }
    });
}

/// Makes the connect queue of a new link report to the instance that the listener is registered with. False:
/// descriptors or memory are used up, so that a queued connect would not be noticed.
#[must_use]
pub fn link_taken(l: &'static Listener, link: &'static Link) -> bool {
    let Some(s) = l.owner.load() else { return true };
    if s.registrations.load().is_none() {
        return true;
    }
    let _b = Blocked::all();
    let _s = STRUCTURE.lock();
    let Some(q) = link.endpoint(CONTROL_SLOT) else { return true };
    let mut heard = true;
    // The first instance has the subscription; the others check the queue in each round.
    each_registration(s, |e, reg| {
        heard &= attach(e, q, reg) != Attached::Nowhere;
        let queue = e.lock.lock();
        enqueue(e, reg);
        drop(queue);
        e.kick();
    });
    heard
}

/// Watches the socket of a client that has connected to a rendezvous and not sent its Hello yet, until
/// [`forget_hello`]; or a new entrance, which is closed with its listener.
pub fn watch_hello(l: &'static Listener, fd: i32) {
    each_hello_watch(l, |e, reg| {
        let _ = e.enter(EPOLL_CTL_ADD, fd, EPOLLIN as u32, cookie(Kind::Rendezvous, reg));
    });
}

/// Undoes [`watch_hello`]; to be called before the socket is closed or becomes a link's control socket. The latter has
/// a different entry, under the same number if no higher one was free.
pub fn forget_hello(l: &'static Listener, fd: i32) {
    each_hello_watch(l, |e, _| {
        let _ = e.enter(EPOLL_CTL_DEL, fd, 0, 0);
    });
}

/// Calls `change` for the instances of a listener, to change the entry of a client that has not sent its Hello.
fn each_hello_watch(l: &'static Listener, change: impl Fn(&'static Epoll, &'static Registration)) {
    let Some(s) = l.owner.load() else { return };
    // STRUCTURE is not taken, since a caller may hold it; registrations are type-stable, and an event for a removed one
    // is ignored.
    each_registration(s, |e, reg| {
        // The list of a registration that was removed meanwhile may continue with those of another socket.
        // Acquire pairs with the store that links a registration to its socket: a thread that sees the socket also sees the
        // registration's new name, from which the cookie is made.
        if reg.sock.load().is_some_and(|found| core::ptr::eq(found, s)) {
            change(e, reg);
        }
    });
}
