//! The ready queue of an instance: registrations that may have something to report.

use crate::epoll::arrivals::Arrivals;
use crate::epoll::cookies::{Kind, cookie};
use crate::epoll::nested::{arm_children, on_hint};
use crate::epoll::registration::release_registration;
use crate::epoll::subscription;
use crate::fork::ownership;
use crate::object::instance::{
    ACCEPTED, DISABLED, Epoll, FRESH, GONE, OLD_SUBFLOW_WATCHED, ON_KERNEL, PEER_LIVENESS_WATCHED, QUEUED, Registration,
};
use crate::object::socket::Path;
use crate::object::source::Source;
use core::sync::atomic::Ordering;
use libc::{EPOLLERR, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP, EPOLLIN, EPOLLONESHOT, EPOLLOUT, EPOLLRDNORM};
use netacc_sys::{raw, time};
use netacc_transport::shm::{ShmEndpoint, enough};
use netacc_transport::{Endpoint, Readiness};

/// Puts a registration into the queue, once. Under the instance's lock.
pub(crate) fn enqueue(e: &Epoll, reg: &'static Registration) {
    if reg.set_queue_bits(QUEUED) & QUEUED != 0 {
        return;
    }
    reg.next_ready.set(None);
    match e.ready_tail.get() {
        Some(t) => t.next_ready.set(Some(reg)),
        None => e.ready_head.set(Some(reg)),
    }
    e.ready_tail.set(Some(reg));
    e.ready_len.add(1);
}

/// Handles the kernel's report that TCP connections wait at a listener. For a level-triggered registration the event is
/// returned at once, so that it keeps its position among the kernel's events: a server that first sees a client's bytes
/// and then further clients would act as if those had not connected yet. `None`: the event goes through the ready
/// queue.
pub(super) fn tcp_waits(e: &'static Epoll, reg: &'static Registration, seen: u32) -> Option<(u32, u64)> {
    const SPECIAL: i32 = EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE | EPOLLRDNORM;
    let events = reg.events.get();
    let listener = reg.sock.load()?.listener()?;
    listener.tcp_waits.note();
    let _g = e.lock.lock();
    let there = reg.epoll.is(e) && reg.queue() & (QUEUED | GONE | DISABLED) == 0;
    let plain = events & SPECIAL as u32 == 0 && events & EPOLLIN as u32 != 0;
    // A connection, or the end of a listener that another thread has shut down.
    let events = seen & (EPOLLIN | EPOLLHUP) as u32;
    (there && plain).then(|| (events, reg.data.get()))
}

fn dequeue(e: &Epoll) -> Option<&'static Registration> {
    let reg = e.ready_head.get()?;
    let next = reg.next_ready.get();
    e.ready_head.set(next);
    if next.is_none() {
        e.ready_tail.set(None);
    }
    e.ready_len.subtract(1);
    reg.unmark(QUEUED);
    Some(reg)
}

/// Empties the queue of an instance that ends.
pub(crate) fn discard(e: &Epoll) {
    let _g = e.lock.lock();
    while let Some(reg) = dequeue(e) {
        if reg.queue() & GONE != 0 {
            release_registration(reg);
        }
    }
}

/// Queues the registration of a connection that may have an event. Under the instance's lock.
pub(crate) fn hinted(e: &Epoll, ep: &ShmEndpoint) {
    // A hint may be stale or forged, but its slot leads to one of our registrations or to none.
    let mut next = subscription::first_of(ep);
    while let Some(reg) = next {
        if reg.epoll.is(e) {
            if e.is_inner() {
                on_hint(e, reg);
            }
            enqueue(e, reg);
        }
        next = reg.alias.get();
    }
}

/// Turns the hints of all active subscriptions into queue entries. Under the instance's lock.
pub(crate) fn collect(e: &Epoll) {
    let mut arrivals = Arrivals::default();
    for w in subscription::active(e) {
        let Some(link) = w.link() else { continue };
        let Some(c) = link.my_ready_set(w.ready_set.get()) else {
            continue;
        };
        for slot in c.take() {
            let Some(ep) = link.endpoint(slot) else {
                continue;
            };
            arrivals.add(e, ep);
        }
    }
    arrivals.finish(e);
    let held = e.held_until.get();
    if held != 0 && time::now() >= held {
        look_behind_holds(e);
    }
    if e.polled.get() > 0 || e.nested.get() > 0 {
        for reg in e.registered() {
            let child = reg
                .child
                .get()
                // The readiness of an inner instance is EPOLLIN alone.
                .filter(|_| reg.events.get() & EPOLLIN as u32 != 0);
            if !reg.source().is_polled() && child.is_none() {
                continue;
            }
            if e.is_inner() {
                if let Some(child) = child {
                    let _g = child.lock.lock();
                    collect(child);
                }
                on_hint(e, reg);
            }
            enqueue(e, reg);
        }
    }
}

/// Notes that a connection has to switch its path: that cannot be done under the instance's lock, so the thread does it
/// afterwards. Also notes the time until which a peer holds bytes back, since the end of that time is not notified.
fn note_switch_due(e: &Epoll, reg: &Registration) {
    let Some(ep) = reg.sock.get().and_then(|s| s.endpoint()) else { return };
    if ep.must_switch() {
        e.switch_due.set(true);
    }
    if let Some(until) = ep.held_until() {
        note_hold(e, until);
    }
}

/// Notes that the instance has to be checked at the time `until`.
pub(super) fn note_hold(e: &Epoll, until: u64) {
    let before = e.held_until.get();
    e.held_until.set(if before == 0 { until } else { before.min(until) });
}

/// Queues connections whose peers held bytes back, since that time may be over. Under the instance's lock.
#[cold]
fn look_behind_holds(e: &Epoll) {
    e.held_until.set(0);
    for reg in e.registered() {
        let ep = reg.sock.get().filter(|s| s.is_shm()).and_then(|s| s.endpoint());
        if ep.is_some_and(|ep| ep.is_held_back()) {
            if e.is_inner() {
                on_hint(e, reg);
            }
            enqueue(e, reg);
        }
    }
}

/// The requested events that a registration has now.
pub(super) fn look(e: &Epoll, reg: &'static Registration) -> u32 {
    let events = reg.events.get();
    let mask = events | (EPOLLERR | EPOLLHUP) as u32;
    if let Some(child) = reg.child.get() {
        return if is_ready(child) { mask & Readiness::IN } else { 0 };
    }
    let Some(s) = reg.sock.get() else { return 0 };
    if s.is_shm() {
        let Some(ep) = s.endpoint() else { return 0 };
        watch_kernel_fds(e, reg, ep);
        e.peer_cpu.set(ep.peer_cpu());
        let r = ep.readiness().0;
        if r & EPOLLIN as u32 == 0 && ep.edges.lowat() > 1 {
            forget_data(reg);
        }
        note_switch_due(e, reg);
        let out = EPOLLOUT as u32;
        if events & out != 0 && r & out == 0 && ep.want_room() {
            return ep.readiness().0 & mask;
        }
        return r & mask;
    }
    match s.path() {
        Path::Listener => match s.listener() {
            Some(l) => {
                let seen = l.tcp_waits.see();
                // Another process may have accepted the connection, so the kernel is asked again.
                let ask = || u32::from(raw::events_now(reg.fd.get(), libc::POLLIN | events as i16).cast_unsigned());
                let tcp = if seen.is_told() { ask() } else { 0 };
                if tcp == 0 {
                    l.tcp_waits.take_back(seen);
                }
                // The bits of the kernel's answer are those of epoll: a connection, or the end of a listener.
                mask & if l.queued() || l.starves() { Readiness::IN | tcp } else { tcp }
            }
            None => 0,
        },
        // This also holds for a connection that was accelerated just now: the thread that did it queues the
        // registration again.
        Path::New | Path::Tcp | Path::Shm => 0,
    }
}

/// Events for which the kernel wakes waiters when data arrives.
const FOR_DATA: u32 = (EPOLLIN | EPOLLRDNORM | libc::EPOLLPRI | libc::EPOLLRDBAND) as u32;
const FOR_ROOM: u32 = (EPOLLOUT | libc::EPOLLWRNORM | libc::EPOLLWRBAND) as u32;

/// Whether an edge-triggered registration has had an edge since it was last reported; with `take` it counts as reported
/// from now on. To be called before the readiness is determined.
pub(super) fn news(reg: &'static Registration, take: bool) -> bool {
    let changed = changed(reg, take);
    let fresh = if take { reg.unmark(FRESH) } else { reg.queue() };
    changed || fresh & FRESH != 0
}

/// Whether the edge counters of a registration have changed. As in the kernel, arriving data concerns registrations for
/// input, room those for output, and ends, errors and shutdown(2) concern all of them.
pub(super) fn changed(reg: &'static Registration, take: bool) -> bool {
    let events = reg.events.get();
    let [data, rest] = &reg.seen;
    let (now, now_rest, lowat);
    if let Some(child) = reg.child.get() {
        (now, now_rest, lowat) = (child.news.get().into(), 0, false);
    } else if let Some(ep) = reg.sock.get().filter(|s| s.is_shm()).and_then(|s| s.endpoint()) {
        let m = ep.edge_seq();
        now = m.data;
        now_rest = u64::from(m.edges) << 32 | u64::from(m.room);
        // Data below SO_RCVLOWAT is no event. After the end no data arrives, but setting that option is an event.
        lowat = ep.edges.lowat() > 1 && !enough::is_lowat_there(ep) && !ep.observed().has_peer_ended();
    } else if reg.source() == Source::Queues
        && let Some(l) = reg.sock.get().and_then(|s| s.listener())
    {
        (now, now_rest, lowat) = (l.arrived(), 0, false);
    } else {
        // Each connection is an edge of a listener, and a hint stands for one.
        return events & FOR_DATA != 0;
    }
    let (was, was_rest) = (data.get(), rest.get());
    if take {
        if !lowat {
            data.set(now);
        }
        rest.set(now_rest);
    }
    let arrived = now != was && !lowat && events & FOR_DATA != 0;
    let room = now_rest as u32 != was_rest as u32 && events & FOR_ROOM != 0;
    arrived || room || now_rest >> 32 != was_rest >> 32
}

/// Lets the bytes that are there count as new once more. Any number of them is enough for a reader with SO_RCVLOWAT while the
/// peer's writer waits for room. It may stop waiting between [`changed`], which takes the edge, and [`look`], and wait again
/// later: then no byte is new, and the event would be lost.
#[cold]
fn forget_data(reg: &Registration) {
    // No connection has received that many bytes. Written under the instance's lock.
    reg.seen[0].set(u64::MAX);
}

/// Enters the kernel sockets of the connection, if there are any: the peer liveness socket of a peer that has forked,
/// the old subflow, and the socket that the connection is switching to. Under the instance's lock.
fn watch_kernel_fds(e: &Epoll, reg: &'static Registration, ep: &ShmEndpoint) {
    if ep.side.has_other_files() {
        rewatch_kernel_fds(e, reg, ep);
    }
    for (fd, which) in [
        (ep.liveness.peer_fd(), PEER_LIVENESS_WATCHED),
        (ep.old_subflow.fd(), OLD_SUBFLOW_WATCHED),
        (ep.passed.kernel_fd(), ON_KERNEL),
    ] {
        if fd >= 0 {
            watch_fd(e, reg, ep, (fd, which));
        }
    }
}

/// Renews the entry of a peer liveness socket that was replaced, and enters the socket that was accepted at a listening
/// liveness socket.
#[cold]
fn rewatch_kernel_fds(e: &Epoll, reg: &'static Registration, ep: &ShmEndpoint) {
    if ep.side.take_peer_liveness_change() {
        reg.flags.fetch_and(!PEER_LIVENESS_WATCHED, Ordering::Relaxed);
    }
    let arrived = ep.liveness.take_arrived(&ep.side);
    if arrived >= 0 {
        reg.flags.fetch_and(!ACCEPTED, Ordering::Relaxed);
        watch_fd(e, reg, ep, (arrived, ACCEPTED));
    }
}

#[cold]
fn watch_fd(e: &Epoll, reg: &'static Registration, ep: &ShmEndpoint, (fd, which): (i32, u32)) {
    // Another thread may have moved the connection to a kernel socket since the endpoint was looked up.
    let s = reg.sock.get();
    let here = s.is_some_and(|s| s.ring().is_some_and(|now| core::ptr::eq(now, ep)));
    if here && reg.flags.fetch_or(which, Ordering::Relaxed) & which == 0 {
        // EPOLLOUT is for the sockets whose room counts, and for the byte that wakes: another thread or process may take
        // it before this instance looks. The kernel drops an edge of whose events none is left, and room always is.
        let events = (libc::EPOLLIN | EPOLLOUT | libc::EPOLLRDHUP | EPOLLET) as u32;
        let _ = e.enter(libc::EPOLL_CTL_ADD, fd, events, cookie(Kind::Liveness, reg));
    }
}

/// To be called before a sleep: arms the liveness sockets that wake connections on links inherited by a fork. Returns whether none
/// of them is ready, and whether no other process reads any of them. Under the instance's lock.
pub(crate) fn arm_liveness(e: &Epoll) -> (bool, bool) {
    let (mut quiet, mut alone) = (true, true);
    for reg in e.registered() {
        if reg.source() == Source::Liveness
            && reg.queue() & DISABLED == 0
            && let Some(s) = reg.sock.get()
            && let Some(ep) = s.endpoint()
        {
            ownership::settle(s);
            alone &= ep.arm_liveness(reg.events.get() & EPOLLOUT as u32 != 0);
            // An edge-triggered registration that is ready and was reported before does not prevent the sleep.
            quiet &= !is_wanted(e, reg);
        }
    }
    (quiet, alone)
}

/// Whether there is room for a waiting writer, for an edge-triggered registration that was queued without an edge. It
/// may have been queued because a peer announced less room than the writer waits for, or because a peer liveness socket
/// was received; no later hint might come for the room.
fn room_after_all(e: &Epoll, reg: &'static Registration) -> bool {
    let Some(ep) = reg.sock.get().and_then(|s| s.endpoint()) else { return false };
    watch_kernel_fds(e, reg, ep);
    reg.events.get() & EPOLLOUT as u32 != 0 && ep.wants_room_still() && news(reg, true)
}

/// The events of a registration taken out of the queue. If there are none, the reason for which it was queued is dropped.
#[inline]
fn find(e: &Epoll, reg: &'static Registration) -> u32 {
    let edge = reg.events.get() & EPOLLET as u32 != 0;
    // A nested instance counts its events while it is checked.
    let nested = !reg.child.is_none();
    if edge && !nested && !news(reg, true) && !room_after_all(e, reg) {
        note_switch_due(e, reg);
        return 0;
    }
    let found = look(e, reg);
    let told = !(edge && nested) || news(reg, true);
    if found == 0 {
        reg.unmark(FRESH);
    }
    if told { found } else { 0 }
}

/// Whether a registration is to be reported, without reporting it. Under the instance's lock.
pub(super) fn is_wanted(e: &Epoll, reg: &'static Registration) -> bool {
    let level = reg.events.get() & EPOLLET as u32 == 0;
    reg.queue() & (DISABLED | GONE) == 0 && (level || news(reg, false)) && look(e, reg) != 0
}

/// Passes at most `max` events of the queue to `out`. Level-triggered registrations stay queued and are checked again
/// next time. Under the instance's lock.
pub(crate) fn harvest(e: &Epoll, max: usize, mut out: impl FnMut(u32, u64)) -> usize {
    let mut n = 0;
    for _ in 0..e.ready_len.get() {
        if n >= max {
            break;
        }
        let Some(reg) = dequeue(e) else { break };
        let flags = reg.queue();
        if flags & GONE != 0 {
            release_registration(reg);
            continue;
        }
        if flags & DISABLED != 0 {
            continue;
        }
        let found = find(e, reg);
        if found == 0 {
            continue;
        }
        let events = reg.events.get();
        out(found, reg.data.get());
        n += 1;
        if events & EPOLLONESHOT as u32 != 0 {
            reg.set_queue_bits(DISABLED);
            reg.unmark(FRESH);
        } else if events & EPOLLET as u32 == 0 {
            enqueue(e, reg);
        }
    }
    n
}

/// Whether an accelerated registration has an event, for an outer instance, poll(2) and select(2). Takes the instance's
/// lock and reports nothing; events in the kernel's set are not considered (see [`super::absorb::absorb`]).
pub(crate) fn is_ready(e: &'static Epoll) -> bool {
    e.foreign.get() || has_own(e)
}

/// Whether a registration has an event that is not a level-triggered one in the kernel's set, for which the kernel
/// itself wakes every waiting thread.
fn has_own(e: &'static Epoll) -> bool {
    if e.stash_len.get() > 0 {
        return true;
    }
    let _g = e.lock.lock();
    collect(e);
    while let Some(reg) = e.ready_head.get() {
        let flags = reg.queue();
        if flags & (GONE | DISABLED) == 0 && find(e, reg) != 0 {
            // The registration stays queued, and an edge is still to be reported.
            reg.set_queue_bits(FRESH);
            return true;
        }
        dequeue(e);
        if flags & GONE != 0 {
            release_registration(reg);
        }
    }
    false
}

/// Queues a registration that was added or changed, since events that are ready now are reported, edge-triggered ones
/// too. `linked`: the kernel would have had it in its ready list before. Under the instance's lock.
pub(crate) fn refresh(e: &Epoll, reg: &'static Registration, linked: bool) {
    // The edge counters are stored before the readiness is determined: a later event is a new edge.
    news(reg, true);
    let ready = match reg.child.get() {
        Some(child) => has_own(child) && reg.events.get() & Readiness::IN != 0,
        None => look(e, reg) != 0,
    };
    if ready || linked {
        reg.set_queue_bits(FRESH);
    }
    if ready && !linked {
        e.notify_outer();
    }
    // A nested instance is queued when its `news` changes; see `collect`.
    if ready || reg.child.is_none() {
        enqueue(e, reg);
    }
}

/// To be called before another waiter sleeps on the instance's descriptor: arms all subscriptions; false if there is an
/// event already.
pub(crate) fn arm(e: &'static Epoll) -> bool {
    {
        let _g = e.lock.lock();
        // A level-triggered event does not prevent the sleep of a waiter that wants edges: so every subscription has to
        // be armed, whatever its bits. If a peer sets bits faster than this loop, the bits themselves report it.
        for _ in 0..8 {
            collect(e);
            if subscription::arm_all(e) {
                break;
            }
        }
        arm_children(e);
    }
    !is_ready(e) && !e.switch_due.get()
}

/// Queues a registration that may be ready and wakes the threads that sleep.
pub(crate) fn touch(e: &'static Epoll, reg: &'static Registration) {
    touch_as(e, reg, false);
}

/// Queues a registration that may be ready. `linked`: the kernel would have it in its ready list already, so no thread
/// is woken.
pub(crate) fn touch_as(e: &'static Epoll, reg: &'static Registration, linked: bool) {
    {
        let _g = e.lock.lock();
        refresh(e, reg, linked);
    }
    e.kick();
}
