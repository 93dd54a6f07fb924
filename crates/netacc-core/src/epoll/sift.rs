//! Sifting of the events from the kernel's sets: our own are handled, the others go to the program.

use crate::epoll::call::Call;
use crate::epoll::children::stirred_by_others;
use crate::epoll::cookies::{Named, Value, open};
use crate::epoll::ready::{enqueue, hinted, tcp_waits};
use crate::epoll::subscription::{self, activate_own, drop_if_useless};
use crate::object::instance::{DISABLED, Epoll, FRESH, GONE, Registration, STRUCTURE};
use crate::object::reference::{Ref, at};
use crate::object::socket::Socket;
use crate::object::source::Source;
use crate::object::subscription::Subscription;
use crate::operator::requests;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use netacc_sys::raw;
use netacc_transport::shm::{Link, ShmEndpoint};
use netacc_transport::wait::WakerSource;

/// Result of polling the kernel's set.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Polled {
    /// Number of events for the application.
    pub(crate) foreign: usize,
    /// Number of our own events.
    pub(crate) own: usize,
    /// Number of events of other processes that share the set, or of objects that no longer exist.
    pub(crate) strange: usize,
    /// Whether some of `foreign` belong to candidates or listeners. Such a registration may enter the ready queue a
    /// moment later, and no call may report a registration twice: so the queue is left for the next call.
    pub(crate) queueable: bool,
}

/// Handles our own among the `n` events that the kernel wrote to `array`, and stores the others in the application's
/// array from index `from` on.
pub(crate) fn sift(e: &'static Epoll, call: &Call, array: *const libc::epoll_event, n: i32, from: usize) -> Polled {
    let mut seen = Polled::default();
    for i in 0..n as usize {
        #[allow(unsafe_code)]
        // SAFETY: the kernel has just written n events. They are packed.
        let ev = unsafe { array.add(i).read_unaligned() };
        let value = open(ev.u64);
        let in_place = match value {
            Value::Ours(Named::Listener(reg)) => tcp_waits(e, reg, ev.events),
            _ => None,
        };
        match in_place
            .map_or_else(|| handle_value(e, value, ev.events, ev.u64), |(events, data)| Said::Program(events, data))
        {
            Said::Program(events, data) => {
                call.put(from + seen.foreign, events, data);
                seen.foreign += 1;
                seen.queueable |= matches!(value, Value::Ours(Named::Candidate(_) | Named::Listener(_)));
            }
            Said::Ours => seen.own += 1,
            Said::Stranger => seen.strange += 1,
        }
    }
    seen
}

/// Meaning of one event of the kernel's set.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Said {
    /// The application gets these events, with this value.
    Program(u32, u64),
    /// The event was for the library alone.
    Ours,
    /// The event was for another process that shares the set, or for an object that no longer exists.
    Stranger,
}

/// Handles one event of the kernel's set.
pub(crate) fn handle(e: &'static Epoll, events: u32, data: u64) -> Said {
    handle_value(e, open(data), events, data)
}

fn handle_value(e: &'static Epoll, value: Value, events: u32, data: u64) -> Said {
    let named = match value {
        Value::Program => return Said::Program(events, data),
        Value::Stranger => return Said::Stranger,
        Value::Ours(named) => named,
    };
    let queue_as = |reg: &'static Registration, fresh: u32| {
        let _g = e.lock.lock();
        // An event for a registration that was removed, or whose object belongs to another instance by now, is ignored.
        if reg.epoll.is(e) && reg.queue() & GONE == 0 {
            if fresh != 0 {
                reg.set_queue_bits(fresh);
                e.notify_outer();
            }
            enqueue(e, reg);
        }
    };
    let queue = |reg: &'static Registration| queue_as(reg, 0);
    let sock = |reg: &'static Registration| -> Option<&'static Socket> { reg.sock.load() };
    match named {
        Named::Kick | Named::Program => {}
        // What is asked for is done by the next round of the wait, which holds no lock.
        Named::WakePipe => requests::drain_wake_pipe(),
        Named::Waker(w) => on_waker(e, w),
        Named::Control(w) => serve(e, w),
        Named::Foreign(reg) => return Said::Program(events, reg.data.get()),
        Named::Listener(reg) => {
            if let Some(l) = sock(reg).and_then(|s| s.listener()) {
                l.tcp_waits.note();
            }
            // The count of arrivals does not include TCP connections.
            queue_as(reg, if reg.source() == Source::Queues { FRESH } else { 0 });
        }
        Named::Rendezvous(reg) => {
            if let Some(l) = sock(reg).and_then(|s| s.listener()) {
                l.take_links();
                if l.is_shut()
                    && let Some(s) = sock(reg)
                {
                    crate::listen::opening::follow_sharer(reg.fd.get(), s);
                }
            }
            queue(reg);
        }
        Named::Candidate(reg) => {
            let Some(s) = sock(reg) else { return Said::Ours };
            if let Some(said) = on_candidate(e, reg, s, events) {
                return said;
            }
            queue(reg);
        }
        Named::Liveness(reg) => {
            let is_edge = sock(reg).and_then(Socket::endpoint).is_some_and(|ep| on_liveness(e, ep, events));
            queue_as(reg, if is_edge { FRESH } else { 0 });
        }
        Named::Nested(reg) => queue_as(reg, if stirred_by_others(reg) { FRESH } else { 0 }),
    }
    Said::Ours
}

/// Looks at the connections of a link that has woken this instance.
fn on_waker(e: &'static Epoll, w: &'static Subscription) {
    // Before the ready set is looked at: whatever is rung for from now on rings anew.
    silence(e, w);
    activate_own(e, w);
    // The thread that noticed the link's end has written every waker after that. The event of the control socket may have
    // come while that thread was still reading, and is not repeated. So it is with messages that a thread left in the socket
    // because there were too many for one call.
    if w.link().is_some_and(|link| link.is_lost() || link.control.has_more_to_read()) {
        serve(e, w);
    }
}

/// What an event of a candidate's kernel socket is. `None`: the connection is in a ring now, and its event comes from there.
fn on_candidate(e: &'static Epoll, reg: &'static Registration, s: &'static Socket, events: u32) -> Option<Said> {
    let r = Ref { obj: s, generation: s.generation() };
    if crate::switch::promote::advance(reg.fd.get(), r) {
        return None;
    }
    let events = confirmed(s, reg, events);
    if events == 0 {
        return Some(Said::Ours);
    }
    // This is the one-shot event, unless the connection has switched meanwhile: then its registration is in the ready queue.
    // The switching thread takes the lock after it has changed the path.
    let _g = e.lock.lock();
    if s.is_shm() {
        return None;
    }
    let ours = reg.epoll.is(e);
    if ours && reg.events.get() & libc::EPOLLONESHOT as u32 != 0 {
        reg.set_queue_bits(DISABLED);
    }
    Some(Said::Program(events, reg.data.get()))
}

/// Handles an event of a connection's liveness socket. Returns whether it is an edge: the edge counters count events of the
/// ring only, and what comes before the ring is the kernel's.
fn on_liveness(e: &'static Epoll, ep: &'static ShmEndpoint, events: u32) -> bool {
    if ep.on_liveness_event(events) && !subscription::is_noted(e, ep) {
        subscription::kick(ep);
    }
    let is_edge = ep.old_subflow.fd() >= 0;
    let _s = STRUCTURE.lock();
    subscription::reactivate(e, ep.side.link());
    is_edge
}

/// The events of a candidate's kernel socket without an end that was that of a former one: the event may be older than
/// the connection's time in a ring. A program that then gets an event too many finds nothing to read.
fn confirmed(s: &Socket, reg: &Registration, events: u32) -> u32 {
    const ENDS: u32 = (libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR) as u32;
    if events & ENDS == 0 || s.upgrade.left.load(Ordering::Relaxed) == 0 {
        return events;
    }
    let fd = reg.fd.get();
    // The bits are those of poll(2).
    let asked = raw::poll_one(fd, (events & ENDS) as i16, 0);
    asked.map_or(events, |now| events & !ENDS | u32::from(now.cast_unsigned()) & ENDS)
}

/// The link of a subscription, with a reference for the caller, and the number of its ready set; `None` if the
/// subscription was dropped meanwhile.
fn hold_link(e: &Epoll, w: &Subscription) -> Option<(&'static Link, u32)> {
    // Under the lock the subscription cannot release its link before this thread has a reference.
    let _g = e.lock.lock();
    let link = w.link().filter(|_| w.epoll.is(e))?;
    link.hold();
    Some((link, w.ready_set.get()))
}

/// Takes the ringing of a waker back that is a socket and would be full some time. An eventfd needs no such thing, since
/// the kernel's set reports each ring of it (`EPOLLET`).
fn silence(e: &'static Epoll, w: &'static Subscription) {
    if w.link().is_some_and(|link| link.wakers().is_named(w.ready_set.get()))
        && let Some((link, ready_set)) = hold_link(e, w)
    {
        link.silence(ready_set);
        link.put();
    }
}

/// Reads a link's control socket, which has messages or has ended.
fn serve(e: &'static Epoll, w: &'static Subscription) {
    let Some((link, _)) = hold_link(e, w) else { return };
    link.service();
    // A forked child of the peer may have cleared `armed` without having our waker, and have sent a message instead: so
    // the ready set is checked again, which also arms it again before the next sleep.
    activate_own(e, w);
    crate::switch::offers::settle_offers();
    if link.is_lost() {
        // A connection that other sharers may use is redispatched when one of them uses it.
        for ep in
            link.endpoints().filter(|ep| ep.must_switch() && !(ep.side.is_shared() && ep.connect.is_orphaned(&ep.side)))
        {
            if let Some(s) = at::<Socket>(ep.owner.load(Ordering::Acquire)) {
                crate::switch::redispatch::complete_switch(Ref { obj: s, generation: s.generation() });
            }
        }
        activate_own(e, w);
        {
            // The peer will write no waker any more, so every connection of the link is checked once more.
            let _g = e.lock.lock();
            for ep in link.endpoints() {
                hinted(e, ep);
            }
        }
        if link.side() == netacc_transport::shm::Side::Server
            && let Some(l) = crate::object::listener::owner_of(link)
        {
            l.sweep();
        }
        let _s = STRUCTURE.lock();
        drop_if_useless(e, w);
    }
    link.put();
}

/// Switches the connections that have to leave their path; their events then come from the new path.
#[cold]
pub(crate) fn complete_switches(e: &'static Epoll) {
    e.switch_due.set(false);
    let mut found = Vec::new();
    {
        let _s = STRUCTURE.lock();
        for reg in e.registered() {
            if let Some(s) = reg.sock.get()
                && s.is_shm()
                && s.endpoint().is_some_and(|ep| ep.must_switch())
            {
                found.push(Ref { obj: s, generation: s.generation() });
            }
        }
    }
    // Called without any lock, since a switch first takes the direction locks.
    for r in found {
        crate::switch::redispatch::complete_switch(r);
    }
}
