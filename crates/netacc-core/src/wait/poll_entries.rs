//! The entries of an array of poll(2): what a call fills in, registers with and pins for them.
//!
//! # Safety
//! The application's array is read and written within its stated length.
#![allow(unsafe_code)]

use crate::conn::pin::Pin;
use crate::epoll::absorb;
use crate::fd::table;
use crate::fd::table::Entry;
use crate::fork::ownership;
use crate::listen::adopt;
use crate::listen::opening::follow_sharer;
use crate::object::reference::Ref;
use crate::object::socket::{SLEPT_ON, Socket};
use crate::wait::held::Held;
use crate::wait::poll_objects::{Ours, arrivals, glance, interest, is_quiet, is_unsettled, look, of, ours};
use crate::wait::sleep::NUMBER_CHECK;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::Ordering;
use libc::{POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLWRNORM, pollfd};
use netacc_sys::errno::Answer;
use netacc_sys::time::{self, Deadline};
use netacc_sys::{cpu, lock, raw};
use netacc_transport::shm::end_look;
use netacc_transport::{Endpoint, WaitSet};

/// What a look at the entries that are ours has found.
pub(super) struct Look {
    /// Number of entries with events.
    pub(super) ready: usize,
    /// Whether there are entries for which the kernel alone is asked.
    pub(super) foreign: bool,
    /// The entries from the first listener to the last one. For listeners the kernel has to be asked too.
    pub(super) listeners: Range<usize>,
    /// Whether there are entries that [`Fds::settle`] is for.
    pub(super) unsettled: bool,
    /// Whether there are entries that [`Fds::look_for_ends`] is for.
    pub(super) silent: bool,
    /// What the kernel can be asked about the foreign entries: as [`Fds::foreign`] adds them.
    set: WaitSet,
}

/// A candidate among the entries of an array.
struct Polled {
    /// Index of the entry.
    at: usize,
    /// The duplicate by which the kernel is polled, if there is room for one.
    copy: Option<Held>,
    /// How often the connection had left a ring before: the duplicate is of its kernel socket since then.
    left: u32,
}

/// The application's array.
pub(super) struct Fds {
    p: *mut pollfd,
    n: usize,
    /// Pins of the sockets that the entries referred to when the call began to wait.
    held: Vec<Option<Pin>>,
    /// The candidates among the entries.
    candidates: Vec<Polled>,
}

/// Whether the sockets of the peer of a connection are to be looked at in the tick `now` of the kernel's clock; 0: at any time.
fn is_silent(ours: Option<Ours>, now: u64) -> bool {
    let Some(Ours::Connection(s)) = ours else { return false };
    now == 0 || s.ring().is_some_and(|ep| end_look::is_due(ep, now))
}

impl Fds {
    /// The application's array of `n` entries at `p`.
    ///
    /// # Safety
    /// They are valid, and can be read and written, as long as this lives.
    pub(super) unsafe fn new(p: *mut pollfd, n: usize) -> Fds {
        Fds { p, n, held: Vec::new(), candidates: Vec::new() }
    }

    pub(super) fn each(&self, mut f: impl FnMut(usize, &mut pollfd)) {
        for i in 0..self.n {
            // SAFETY: i < n (the module's safety note).
            f(i, unsafe { &mut *self.p.add(i) });
        }
    }

    /// Fills in the events of all our entries, as far as they are known without a question to the kernel about listeners. `waits`:
    /// the call sleeps if there are none, and hears of the end of a peer then.
    pub(super) fn look(&self, waits: bool) -> Look {
        let now = if waits { 0 } else { time::coarse() };
        let (foreign, unsettled, silent) = (false, false, false);
        let mut found = Look { ready: 0, foreign, listeners: 0..0, unsettled, silent, set: WaitSet::new() };
        self.each(|i, p| {
            self.with(i, p.fd, |ours| match ours.and_then(|o| glance(o, p.fd, p.events)) {
                Some(events) => {
                    p.revents = events;
                    found.ready += usize::from(events != 0);
                    found.silent |= events & !(POLLOUT | POLLWRNORM) == 0 && is_silent(ours, now);
                    if let Some(Ours::Listener(_)) = ours {
                        let first = if found.listeners.is_empty() { i } else { found.listeners.start };
                        found.listeners = first..i + 1;
                    }
                }
                None if p.fd >= 0 => {
                    found.foreign = true;
                    found.unsettled |= table::socket(p.fd).is_some_and(is_unsettled);
                    found.set.fill_up(i);
                    found.set.add(self.polled(i, p.fd), p.events);
                }
                // poll(2): an entry with a negative number is ignored.
                None => p.revents = 0,
            });
        });
        found
    }

    /// Looks for the end of the peers of connections without events, for a call that does not wait. Returns whether it has
    /// looked at any, so that the caller looks at the entries again.
    pub(super) fn look_for_ends(&self) -> bool {
        let now = time::coarse();
        let mut any = false;
        self.each(|i, p| {
            self.with(i, p.fd, |ours| {
                if let Some(Ours::Connection(s)) = ours
                    && let Some(ep) = s.ring().filter(|ep| end_look::is_due(ep, now))
                {
                    any |= end_look::look(ep, now);
                }
            });
        });
        if any {
            self.heal();
        }
        any
    }

    /// Calls `f` with the object behind entry `i`. A connection is pinned until `f` has returned, even if other threads
    /// close it: a close must not unmap its segment meanwhile.
    fn with<T>(&self, i: usize, fd: i32, f: impl FnOnce(Option<Ours>) -> T) -> T {
        let for_now;
        let pin = match self.held.get(i) {
            Some(Some(pin)) => Some(pin),
            _ => match table::get(fd) {
                Some(Entry::Socket(r)) => {
                    for_now = r.pin();
                    for_now.as_ref()
                }
                _ => return f(ours(fd)),
            },
        };
        // If it cannot be pinned, another thread has just closed the number.
        f(pin.and_then(|pin| of(fd, pin.sock())))
    }

    /// Adds the foreign entries in order, with -1 in place of ours, so that the indices agree.
    pub(super) fn foreign(&self, set: &mut WaitSet) -> bool {
        let mut any = false;
        self.each(|i, p| {
            let f = self.with(i, p.fd, |ours| if ours.is_some() { -1 } else { self.polled(i, p.fd) });
            any |= f >= 0;
            set.add(f, p.events);
        });
        if self.candidates.iter().any(|c| c.copy.is_none()) {
            // The number may get another socket, which would not wake this thread.
            set.wake_at(time::now().saturating_add(NUMBER_CHECK));
        }
        any
    }

    /// Adds the descriptors at which clients of our listeners arrive, which are among the entries of `range`.
    fn add_arrivals(&self, range: Range<usize>, set: &mut WaitSet) {
        set.fill_up(self.n);
        for i in range {
            let fd = self.number(i);
            self.with(i, fd, |ours| {
                if let Some(Ours::Listener(s)) = ours
                    && let Some(l) = s.listener()
                {
                    arrivals(l, fd).for_each(|fd| _ = set.add(fd, POLLIN));
                }
            });
        }
    }

    /// Fills in the events of all entries after a sleep, the foreign ones as the kernel reported them for `set`, and
    /// returns how many have any. `None`: a number has had another socket since `set` was made, for which the kernel was
    /// not asked. Each entry is looked at once, since a connection may change its path between two looks.
    pub(super) fn results(&self, set: &WaitSet) -> Option<usize> {
        self.fill_in(set, look)
    }

    /// As [`Fds::results`], with `look_at` for the entries that are ours.
    fn fill_in(&self, set: &WaitSet, look_at: impl Fn(Ours, i32, i16) -> Option<i16>) -> Option<usize> {
        let (mut n, mut changed) = (0, false);
        self.each(|i, p| {
            p.revents = self.with(i, p.fd, |ours| match ours.map(|o| look_at(o, p.fd, p.events)) {
                Some(Some(events)) => events,
                Some(None) => {
                    changed = true;
                    0
                }
                None if p.fd >= 0 && set.fd(i) != self.polled(i, p.fd) => {
                    changed = true;
                    0
                }
                None => set.revents(i),
            });
            n += usize::from(p.revents != 0);
        });
        (!changed).then_some(n)
    }

    /// Registers for all entries of ours; true when something is ready already.
    pub(super) fn arm(&self, set: &mut WaitSet) -> bool {
        let mut ready = false;
        self.each(|i, p| match self.ours(i, p.fd) {
            // The object came after `hold`, which is called again before the next sleep.
            Some(Ours::Connection(_) | Ours::Listener(_)) if !self.holds(i) => ready = true,
            Some(Ours::Connection(s)) => {
                ownership::settle(s);
                // A connection without an endpoint, or one that has to switch, is about to leave the ring.
                let moves = s.endpoint().is_none_or(|ep| {
                    ep.arm(interest(p.events), set);
                    ep.must_switch() || !ep.side.is_live()
                });
                ready |= moves || look(Ours::Connection(s), p.fd, p.events) != Some(0);
            }
            Some(Ours::Listener(s)) => {
                if let Some(l) = s.listener() {
                    set.add(l.kernel_fd(p.fd), POLLIN);
                    ready |= l.arm(set);
                }
            }
            Some(Ours::Epoll) => {
                set.add(absorb::sleeps_on(p.fd), POLLIN);
                ready |= !absorb::arm(p.fd);
                absorb::held_until(p.fd).into_iter().for_each(|until| set.wake_at(until));
            }
            // The entry was ours when the set was made, and is foreign now, so it would not wake this thread.
            None => ready |= p.fd >= 0 && set.fd(i) < 0,
        });
        ready
    }

    /// Pins the sockets of the entries while a thread sleeps on them: as in the kernel, a poll continues with the files
    /// that its numbers referred to at its beginning, and a close in another thread takes effect when it returns.
    ///
    /// Called before each sleep, since a foreign number may have become a connection. True if there are duplicates now
    /// that the set does not have.
    pub(super) fn hold(&mut self) -> bool {
        let mut copied = false;
        self.held.resize_with(self.n, || None);
        for i in 0..self.n {
            let fd = self.number(i);
            if !self.holds(i) {
                // Also where it is the kernel's: the thread wakes for reasons of the library's, and then needs a number.
                let pin = table::socket(fd).and_then(Ref::pin);
                if let Some(s) = pin.as_ref().map(|pin| pin.sock().obj).filter(|s| s.is_kernels()) {
                    s.set(SLEPT_ON, true);
                }
                if let Some(place) = self.held.get_mut(i) {
                    *place = pin;
                }
            }
            copied |= self.copy_candidate(i, fd);
        }
        copied
    }

    /// Makes a duplicate for entry `i`, if that is a candidate and has none of its present kernel socket.
    fn copy_candidate(&mut self, i: usize, fd: i32) -> bool {
        let Some(Some(pin)) = self.held.get(i) else { return false };
        let r = pin.sock();
        let left = r.obj.upgrade.left.load(Ordering::Relaxed);
        if !r.obj.is_candidate() || self.candidates.iter().any(|c| c.at == i && c.left == left) {
            return false;
        }
        let copy = Held::to_poll(fd);
        // Checked after the duplicate was made, so that it is the candidate's socket and not a later one.
        if !r.obj.is_candidate()
            || r.obj.upgrade.left.load(Ordering::Relaxed) != left
            || !table::get(fd).is_some_and(|e| e.is(r))
        {
            return false;
        }
        self.candidates.retain(|c| c.at != i);
        self.candidates.push(Polled { at: i, copy, left });
        true
    }

    fn holds(&self, i: usize) -> bool {
        matches!(self.held.get(i), Some(Some(_)))
    }

    /// Whether another thread has closed the number of an entry meanwhile, so that the call cannot be made anew.
    pub(super) fn has_closed(&self) -> bool {
        self.held.iter().flatten().any(|pin| pin.sock().obj.kept.fd() >= 0)
    }

    /// The connections among the entries, which are pinned, with the events that each entry asks for.
    fn connections(&self) -> impl Iterator<Item = (&'static Socket, u32)> {
        self.held.iter().enumerate().filter_map(|(i, pin)| {
            let s = pin.as_ref().map(|pin| pin.sock().obj).filter(|s| s.is_shm())?;
            // SAFETY: `held` has at most n entries, so i < n (the module's safety note).
            let events = if i < self.n { unsafe { (*self.p.add(i)).events } } else { 0 };
            Some((s, (events | POLLERR | POLLHUP) as u16 as u32))
        })
    }

    /// The connection whose record says whether spinning pays, and its peer's CPU: the first one whose peer runs on
    /// another CPU than this thread, else the first. What an idle connection knows of its peer is old, and must not keep
    /// the others from spinning.
    pub(super) fn to_spin_on(&self) -> Option<(&'static Socket, u32)> {
        let here = cpu::current();
        let mut all = self.connections().map(|(s, _)| (s, s.endpoint().map_or(cpu::NO_CPU, |e| e.peer_cpu())));
        let first = all.next()?;
        if first.1 != here { Some(first) } else { all.find(|(_, peer)| *peer != here).or(Some(first)) }
    }

    /// Whether one of the connections has events. For those in a ring this costs no system call.
    pub(super) fn has_ready_connection(&self) -> bool {
        self.connections().any(|(s, mask)| s.endpoint().is_none_or(|e| e.readiness().0 & mask != 0))
    }

    /// Unpins entries whose number got another file (dup2): the kernel looks the numbers up again when a poll wakes,
    /// and continues with the new file. True if there is such a number.
    pub(super) fn let_go_of_replaced(&mut self) -> bool {
        let mut any = false;
        for i in 0..self.held.len() {
            let fd = self.number(i);
            if let Some(place) = self.held.get_mut(i)
                && place.as_ref().is_some_and(|pin| table::is_replaced(pin.sock(), fd))
            {
                *place = None;
                self.candidates.retain(|c| c.at != i);
                any = true;
            }
        }
        any
    }

    /// Fills in the current events of all entries without waiting, and returns how many have any.
    pub(super) fn at_once(&self) -> Answer<usize> {
        loop {
            let mut set = WaitSet::new();
            if self.foreign(&mut set) {
                set.sleep(Deadline::Now, core::ptr::null())?;
            }
            if let Some(n) = self.results(&set) {
                return Ok(n);
            }
        }
    }

    /// As [`Fds::at_once`], after a look that has found entries for which the kernel has to be asked. One question covers
    /// the foreign entries and the arrivals at our listeners, since a program with a listener in its array asks for
    /// every message of a connection. Only a listener at which somebody has arrived costs more.
    pub(super) fn ask(&self, found: Look) -> Answer<usize> {
        let mut set = found.set;
        self.add_arrivals(found.listeners, &mut set);
        // With the arrivals there may be more descriptors than RLIMIT_NOFILE allows in one call.
        if set.sleep(Deadline::Now, core::ptr::null()).is_err() {
            return self.at_once();
        }
        let seen = |o, fd, events| {
            if is_quiet(o, fd, &set) { glance(o, fd, events) } else { look(o, fd, events) }
        };
        self.fill_in(&set, seen).map_or_else(|| self.at_once(), Ok)
    }

    /// To be called after the kernel was asked: takes up the sockets that other processes have made listeners, or have
    /// connected. That costs nothing while they are unconnected, as the events of their entries tell. Returns whether there is
    /// one, so that the entries are to be looked at again.
    pub(super) fn settle(&self) -> bool {
        if lock::interrupted() {
            // A handler may have interrupted a thread that is taking one up.
            return false;
        }
        let mut any = false;
        self.each(|_, p| {
            if p.revents & POLLHUP == 0
                && let Some(r) = table::socket(p.fd).filter(|r| is_unsettled(*r))
                && let Some(_pin) = r.pin()
            {
                adopt::wake(p.fd, r);
                any |= !is_unsettled(r);
            }
        });
        any
    }

    /// To be called before the poll returns with `n` entries that have events: gives those whose numbers another thread has
    /// closed meanwhile the events of what lies there now, and `closed` where nothing does. As in the kernel, which looks
    /// the numbers up again whenever it wakes, such a close alone wakes nobody.
    pub(super) fn after_closes(&mut self, mut n: usize, closed: i16) -> usize {
        for i in 0..self.held.len().min(self.n) {
            let fd = self.number(i);
            let Some(place) = self.held.get_mut(i) else { break };
            if place.as_ref().is_none_or(|pin| table::get(fd).is_some_and(|e| e.is(pin.sock()))) {
                continue;
            }
            *place = None;
            self.candidates.retain(|c| c.at != i);
            // SAFETY: i < n (the module's safety note).
            let entry = unsafe { &mut *self.p.add(i) };
            n = n.saturating_sub(usize::from(entry.revents != 0));
            let seen = ours(fd).and_then(|o| look(o, fd, entry.events));
            entry.revents = seen.unwrap_or_else(|| raw::events_now(fd, entry.events));
            if entry.revents & POLLNVAL != 0 {
                entry.revents = closed;
            }
            n += usize::from(entry.revents != 0);
        }
        n
    }

    fn number(&self, i: usize) -> i32 {
        // SAFETY: i < n (the module's safety note).
        if i < self.n { unsafe { (*self.p.add(i)).fd } } else { -1 }
    }

    /// The number by which the kernel is polled for entry `i` with the number `fd`: the duplicate, unless the connection
    /// has got another kernel socket since that was made, or the one that is kept for an entry whose number was closed.
    fn polled(&self, i: usize, fd: i32) -> i32 {
        let found = self.candidates.iter().find(|c| c.at == i).zip(self.held.get(i).and_then(Option::as_ref));
        let same = found.filter(|(c, pin)| pin.sock().obj.upgrade.left.load(Ordering::Relaxed) == c.left);
        let copy = same.and_then(|(c, _)| c.copy.as_ref()).map(Held::fd);
        let pinned = || self.held.get(i).and_then(Option::as_ref);
        copy.unwrap_or_else(|| pinned().map_or(fd, |pin| pin.sock().obj.kernel_fd(fd)))
    }

    fn ours(&self, i: usize, fd: i32) -> Option<Ours> {
        match self.held.get(i) {
            Some(Some(pin)) => of(fd, pin.sock()),
            _ => ours(fd),
        }
    }

    /// Switches connections that have to leave their path, and removes the links of dead clients from listeners, since
    /// their control sockets would end every further sleep.
    pub(super) fn heal(&self) {
        self.each(|i, p| {
            let for_now;
            let pin = match self.held.get(i) {
                Some(Some(pin)) => pin,
                _ => match table::socket(p.fd).and_then(Ref::pin) {
                    Some(pin) => {
                        for_now = pin;
                        &for_now
                    }
                    None => return,
                },
            };
            let r = pin.sock();
            if r.obj.endpoint().is_some_and(|e| e.must_switch()) {
                crate::switch::redispatch::complete_switch(r);
            }
            if let Some(l) = r.obj.listener() {
                // The rendezvous of a listener that another sharer has left would end every further sleep, too.
                if l.is_shut() {
                    follow_sharer(p.fd, r.obj);
                } else {
                    l.sweep();
                }
            }
        });
    }

    pub(super) fn disarm(&self, set: &WaitSet) {
        self.each(|i, p| match self.ours(i, p.fd).filter(|_| self.holds(i)) {
            Some(Ours::Connection(s)) => {
                if let Some(ep) = s.endpoint() {
                    ep.disarm(interest(p.events), set);
                }
            }
            Some(Ours::Listener(s)) => {
                if let Some(l) = s.listener() {
                    l.disarm(set);
                }
            }
            _ => {}
        });
    }
}
