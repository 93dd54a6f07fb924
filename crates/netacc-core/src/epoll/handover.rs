//! What of the epoll instances a copy of the library leaves to the kernel, and to the copy that takes its place
//! ([`crate::operator::exchange`]).

use crate::epoll::cookies::{NOBODY, looks_like_cookie};
use crate::epoll::ctl::control;
use crate::epoll::kernel_set::Usage;
use crate::epoll::registration::link;
use crate::epoll::{shared, stash, subscription};
use crate::fd::table::{self, Entry};
use crate::fork::descendants;
use crate::listen::adopt;
use crate::object::instance::{DISABLED, Epoll, PROGRAMS, STRUCTURE, registered};
use crate::object::source::Source;
use crate::outcome::Outcome;
use core::sync::atomic::Ordering;
use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLIN, EPOLLONESHOT};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::raw;

/// Wakes the threads that sleep in the instance: `waker` can be read at any time. Their calls see that the event is none
/// of the program's.
pub(crate) fn wake(e: &'static Epoll, waker: i32) {
    if e.sleepers.load(Ordering::SeqCst) == 0 {
        return;
    }
    let _s = STRUCTURE.lock();
    // An instance without registrations of ours would give the event to the program.
    e.add_ours(1);
    if raw::epoll_ctl(e.fd(), EPOLL_CTL_ADD, waker, EPOLLIN as u32, NOBODY).is_err() {
        e.add_ours(-1);
    }
}

/// Takes the waker out of the instance. A thread may have its event still, and has to see that it is none of the program's:
/// so the instance stays one that has something of ours.
pub(crate) fn stop_waking(e: &'static Epoll, waker: i32) {
    let _ = raw::epoll_ctl(e.fd(), EPOLL_CTL_DEL, waker, 0, 0);
}

/// An instance, as the other copy has to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instance {
    pub(crate) fd: i32,
    /// Index of the flags that it shares with the processes forked from this one.
    pub(crate) flags: u32,
    /// Number of the [`Usage`] that says which processes use the kernel's set.
    pub(crate) usage: u32,
    /// Whether it has had something of ours, so that its threads sleep in calls of ours, and hear of an operator.
    pub(crate) mixed: bool,
}

/// A registration that the other copy has to make its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Watch {
    pub(crate) epoll: i32,
    pub(crate) fd: i32,
    pub(crate) events: u32,
    pub(crate) data: u64,
    /// Whether EPOLLONESHOT has disabled it, so that the kernel does not have it.
    pub(crate) disabled: bool,
}

/// An event that was taken from the kernel and that no call has reported yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) epoll: i32,
    pub(crate) events: u32,
    pub(crate) data: u64,
}

/// Checks that the kernel can serve the instance alone.
pub(crate) fn check(e: &'static Epoll) -> Result<()> {
    let _s = STRUCTURE.lock();
    e.registered().try_for_each(|reg| match reg.source() {
        Source::Nothing | Source::Kernel | Source::Translated | Source::Foreign | Source::Nested => Ok(()),
        Source::ReadySet | Source::Rounds | Source::Liveness | Source::Listener | Source::Queues => Err(Errno::BUSY),
    })
}

/// Whether a registration of the descriptor reports once and is then disabled: the other copy could not tell whether it
/// is just now.
pub(crate) fn is_one_shot(fd: i32) -> bool {
    let Some(r) = table::socket(fd) else { return false };
    registered(r.obj).any(|reg| reg.events.get() & EPOLLONESHOT as u32 != 0)
}

/// Takes everything of ours out of the instance's set in the kernel, and leaves the program's own events there.
/// `watch` gets those registrations that the other copy has to make its own; `listens` tells which sockets it serves.
pub(crate) fn leave(e: &'static Epoll, listens: impl Fn(i32) -> bool, mut watch: impl FnMut(Watch)) -> Instance {
    let _s = STRUCTURE.lock();
    let (set, own) = (e.fd(), e.own.load(Ordering::Acquire));
    for reg in e.registered() {
        let source = reg.source();
        let (fd, events, data) = (reg.fd.get(), reg.events.get(), reg.data.get());
        let disabled = reg.queue() & DISABLED != 0;
        if disabled && source == Source::Translated {
            // The kernel has it disabled as well, and a change of its value would enable it.
            let _ = raw::epoll_ctl(set, EPOLL_CTL_DEL, fd, 0, 0);
        }
        if disabled || source == Source::Nothing {
            watch(Watch { epoll: set, fd, events, data, disabled: true });
            continue;
        }
        if own != 0 && reg.flags.load(Ordering::Relaxed) & PROGRAMS == 0 {
            // The set of our own, in which the program's event is, is about to be closed.
            let _ = raw::epoll_ctl(set, EPOLL_CTL_ADD, fd, events, data);
        } else if source != Source::Kernel {
            // Another process that has the set may have taken the entry out.
            let _ = raw::epoll_ctl(set, EPOLL_CTL_MOD, fd, events, data)
                .or_else(|_| raw::epoll_ctl(set, EPOLL_CTL_ADD, fd, events, data));
        }
        if source != Source::Kernel || listens(fd) {
            watch(Watch { epoll: set, fd, events, data, disabled: false });
        }
    }
    if e.usage() != Usage::Inherited {
        // A peer has our wakers, too, so that their entries do not end with our descriptors.
        subscription::drop_all(e);
        for ours in [e.kick.load(Ordering::Acquire) - 1, crate::operator::requests::wake_pipe_if_any()] {
            if ours >= 0 {
                let _ = raw::epoll_ctl(set, EPOLL_CTL_DEL, ours, 0, 0);
            }
        }
    }
    let usage = match e.usage() {
        Usage::Forked if descendants::nobody_inherits() => Usage::Alone,
        usage => usage,
    };
    Instance { fd: set, flags: e.loop_index.get(), usage: usage as u32, mixed: !e.is_plain() }
}

/// Enters another number of an instance of the other copy in the table.
pub(crate) fn enter_also(fd: i32, first: i32) {
    if let Some(r) = table::epoll(first) {
        r.obj.add_ref();
        let _ = table::put(fd, Entry::Epoll(r));
    }
}

/// Enters an instance of the other copy in the table.
pub(crate) fn enter(instance: Instance) {
    let Outcome::Done(_) = crate::epoll::create::create(|| Ok(instance.fd)) else { return };
    let Some(r) = table::epoll(instance.fd) else { return };
    r.obj.loop_index.set(instance.flags);
    match instance.usage {
        u if u == Usage::Inherited as u32 => shared::taken_over(r.obj, Usage::Inherited),
        u if u == Usage::Alone as u32 => {}
        _ => shared::taken_over(r.obj, Usage::Forked),
    }
    if instance.mixed && !r.obj.is_inherited() {
        let _s = STRUCTURE.lock();
        let _ = r.obj.ensure_kick();
    }
}

/// The events that were taken from the kernel and that no call has reported yet.
pub(crate) fn taken(fd: i32, e: &Epoll) -> impl Iterator<Item = Taken> {
    stash::all(e).map(move |(events, data)| Taken { epoll: fd, events, data })
}

/// Has the next call report an event that the other copy has taken from the kernel.
pub(crate) fn report(t: Taken) {
    if let Some(r) = table::epoll(t.epoll) {
        stash::stash(r.obj, t.events, t.data, t.data);
    }
}

/// Makes a registration of the other copy one of this copy.
pub(crate) fn register(w: Watch) {
    if w.disabled {
        if let (Some(r), Some(s)) = (table::epoll(w.epoll), table::socket(w.fd)) {
            let _s = STRUCTURE.lock();
            // Without it the program could not enable it.
            let _ = link(r.obj, Some(s.obj), w.fd, (w.events, w.data));
        }
        return;
    }
    let concerns_us = table::get(w.fd).is_some() || looks_like_cookie(w.data);
    if !concerns_us || !is_free_for(w) {
        return;
    }
    // An edge that is reported again does no harm, and there is none that reports once.
    if control(w.epoll, EPOLL_CTL_ADD, w.fd, Some((w.events, w.data))) != Outcome::Done(0) {
        let _ = raw::epoll_ctl(w.epoll, EPOLL_CTL_ADD, w.fd, w.events, w.data);
    }
}

/// Takes the entry of the kernel's out, in whose place a registration of ours comes. False: the program has taken it out. In a
/// set that several processes use another one may have done so, to make its own anew; and a listener's entry stays there, where
/// it serves those that have no other ([`shared::leave_to_others`]).
fn is_free_for(w: Watch) -> bool {
    let is_shared = table::epoll(w.epoll).is_some_and(|r| r.obj.usage() != Usage::Alone);
    let stays = is_shared && adopt::listens(w.fd);
    let is_out = !stays && raw::epoll_ctl(w.epoll, EPOLL_CTL_DEL, w.fd, 0, 0).is_ok();
    is_shared || is_out
}
