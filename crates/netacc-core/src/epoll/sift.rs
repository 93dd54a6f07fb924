//! What the kernel's sets have said: events of ours are handled, the others are the program's.

use crate::epoll::call::Call;
use crate::epoll::children::stirred_by_others;
use crate::epoll::cookies::{Named, Value, open};
use crate::epoll::ready::{enqueue, hinted, tcp_waits};
use crate::epoll::subscription;
use crate::epoll::subscription::{activate_own, drop_if_useless};
use crate::object::instance::{DISABLED, Epoll, FRESH, GONE, LISTENED, Registration, STRUCTURE};
use crate::object::reference::{Ref, at};
use crate::object::socket::Socket;
use crate::object::subscription::Subscription;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use netacc_transport::shm::Link;

/// What a look at the kernel's set brought.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Polled {
    /// Events for the application.
    pub(crate) foreign: usize,
    /// Events of ours.
    pub(crate) own: usize,
    /// Events of other processes that share the set, or of objects that are gone.
    pub(crate) strange: usize,
    /// Whether some of `foreign` are of connections that may be promoted, or of listeners. Such a registration can be
    /// in our queue a moment later, and no call reports a registration twice: what the queue has is for the next call.
    pub(crate) queueable: bool,
}

/// Handles our events among the `n` that the kernel wrote to `array`; the others go into the application's array from
/// index `from` on.
pub(crate) fn sift(e: &'static Epoll, call: &Call, array: *const libc::epoll_event, n: i32, from: usize) -> Polled {
    let mut seen = Polled::default();
    for i in 0..n as usize {
        #[allow(unsafe_code)]
        // SAFETY: the kernel has just written n events. They are packed.
        let ev = unsafe { array.add(i).read_unaligned() };
        let value = open(ev.u64);
        let in_place = match value {
            Value::Ours(Named::Listener(reg)) => tcp_waits(e, reg),
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

/// What one event of the kernel's set comes to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Said {
    /// The application gets to see these events, with this value.
    Program(u32, u64),
    /// The event was for the library alone.
    Ours,
    /// It was for another process that shares the set, or for an object that is gone.
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
        // A registration that was removed, or whose object serves another instance by now, says nothing.
        if core::ptr::eq(reg.epoll.load(Ordering::Relaxed), e) && reg.queue() & GONE == 0 {
            if fresh != 0 {
                reg.set_queue_bits(fresh);
                e.notify_outer();
            }
            enqueue(e, reg);
        }
    };
    let queue = |reg: &'static Registration| queue_as(reg, 0);
    let sock = |reg: &'static Registration| -> Option<&'static Socket> { at(reg.sock.load(Ordering::Acquire)) };
    match named {
        Named::Kick | Named::Program => {}
        Named::Waker(w) => {
            activate_own(e, w);
            // The thread that saw the link's end woke every waker after it. The end's own event on the control socket
            // may have come while that thread was still reading, and there is no second one.
            if w.link().is_some_and(Link::is_lost) {
                serve(e, w);
            }
        }
        Named::Control(w) => serve(e, w),
        Named::Foreign(reg) => return Said::Program(events, reg.data.load(Ordering::Relaxed)),
        Named::Listener(reg) => {
            if let Some(l) = sock(reg).and_then(|s| s.listener()) {
                l.tcp_waits.store(1, Ordering::Relaxed);
            }
            // Where arrivals are counted, the kernel's are not among them.
            queue_as(reg, if reg.flags.load(Ordering::Relaxed) & LISTENED != 0 { FRESH } else { 0 });
        }
        Named::Rendezvous(reg) => {
            if let Some(l) = sock(reg).and_then(|s| s.listener()) {
                l.take_links();
                if l.is_shut()
                    && let Some(s) = sock(reg)
                {
                    crate::listen::opening::abandon(reg.fd.load(Ordering::Relaxed), s);
                }
            }
            queue(reg);
        }
        Named::Candidate(reg) => {
            let Some(s) = sock(reg) else { return Said::Ours };
            let r = Ref { obj: s, generation: s.generation() };
            if !crate::switch::promote::advance(reg.fd.load(Ordering::Relaxed), r) {
                // This is its one shot, unless it has gone over meanwhile: then it is in our queue, and its shot comes
                // from there. The thread that puts it there takes the lock after the path is changed.
                let _g = e.lock.lock();
                if !s.is_shm() {
                    let ours = core::ptr::eq(reg.epoll.load(Ordering::Relaxed), e);
                    if ours && reg.events.load(Ordering::Relaxed) & libc::EPOLLONESHOT as u32 != 0 {
                        reg.set_queue_bits(DISABLED);
                    }
                    return Said::Program(events, reg.data.load(Ordering::Relaxed));
                }
            }
            queue(reg);
        }
        Named::Liveness(reg) => {
            let mut fresh = 0;
            if let Some(ep) = sock(reg).and_then(|s| s.endpoint()) {
                ep.on_liveness_event();
                if ep.old_subflow_fd() >= 0 {
                    // The marks know of the ring alone: this edge is the kernel's.
                    fresh = FRESH;
                }
                let _s = STRUCTURE.lock();
                subscription::reactivate(e, ep.link());
            }
            queue_as(reg, fresh);
        }
        Named::Nested(reg) => queue_as(reg, if stirred_by_others(reg) { FRESH } else { 0 }),
    }
    Said::Ours
}

/// A link's control socket has something: messages, or the end.
fn serve(e: &'static Epoll, w: &'static Subscription) {
    let link = {
        // Under the lock the subscription cannot let its link go before we hold it too.
        let _g = e.lock.lock();
        let Some(link) = w.link().filter(|_| core::ptr::eq(w.epoll.load(Ordering::Relaxed), e)) else {
            return;
        };
        link.hold();
        link
    };
    link.service();
    // A forked child of the peer that took our `armed` mark may have had no waker of ours to ring and have
    // knocked elsewhere: look at the ready set again, which also arms it anew before the next sleep.
    activate_own(e, w);
    if netacc_transport::shm::promote::waiting() {
        crate::switch::promote::match_offers();
    }
    if link.is_lost() {
        // A connection that our other sharers may use goes elsewhere when one of them uses it.
        for ep in link.endpoints().filter(|ep| ep.must_switch() && !(ep.is_shared() && ep.orphaned())) {
            if let Some(s) = at(ep.owner.load(Ordering::Acquire) as *mut Socket) {
                crate::switch::redispatch::complete_switch(Ref { obj: s, generation: s.generation() });
            }
        }
        activate_own(e, w);
        {
            // The peer will ring no more: everything on this link is looked at for the last time.
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

/// Moves connections that cannot stay where they are; what they have to say then comes from their new place.
#[cold]
pub(crate) fn complete_switches(e: &'static Epoll) {
    e.switch_due.store(0, Ordering::Relaxed);
    let mut found = Vec::new();
    {
        let _s = STRUCTURE.lock();
        let mut p = e.registrations.load(Ordering::Relaxed);
        while let Some(reg) = at(p) {
            p = reg.next_all.load(Ordering::Relaxed);
            if let Some(s) = at(reg.sock.load(Ordering::Relaxed))
                && s.is_shm()
                && s.endpoint().is_some_and(|ep| ep.must_switch())
            {
                found.push(Ref { obj: s, generation: s.generation() });
            }
        }
    }
    // Without any lock of ours: to move a connection begins with the direction locks.
    for r in found {
        crate::switch::redispatch::complete_switch(r);
    }
}
