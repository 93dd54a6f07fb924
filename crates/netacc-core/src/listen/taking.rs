//! Taking up the links of a listener's clients: a few at a time, and within the limits of each user.

use crate::epoll::{listeners, subscription};
use crate::limits::HELLOS_PER_ACCEPT;
use crate::listen::crowd::{self, Room, User};
use crate::listen::withdrawal::hand_on;
use crate::object::listener::{HELLOS, Listener, note_taken_up, readable, reserved_back, served_by};
use crate::wait::bell;
use core::sync::atomic::{AtomicI32, Ordering, fence};
use netacc_stats::{Reason, page};
use netacc_sys::raw;
use netacc_transport::shm::admission::{self, Taken};
use netacc_transport::shm::{Link, guard};
use rustix::fd::{BorrowedFd, IntoRawFd};

/// State of one sweep over the waiting clients of a listener.
#[derive(Default)]
struct Sweep {
    /// Number of clients that may still be examined in this sweep.
    budget: u32,
    /// The link that was just taken up. It is held, since another thread may find its client gone and remove it.
    fresh: Option<&'static Link>,
    /// The idle link that was removed to make room for it.
    gone: Option<&'static Link>,
    /// Whether there is something that a thread has to sleep on which fell asleep before: a new link, or a client that has
    /// not sent its Hello.
    news: bool,
}

impl Sweep {
    /// Whether there is something for [`enter_taken`] to do.
    fn has_something(&self) -> bool {
        self.fresh.is_some() || self.gone.is_some() || self.news
    }
}

/// Those of the two sockets (or -1) at which a client waits, by one question to the kernel for both.
fn knocked(rendezvous: i32, entrance: i32) -> [i32; 2] {
    let mut asked = [rendezvous, entrance].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let many = if entrance < 0 { 1 } else { 2 };
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let any = raw::ppoll(asked.as_mut_ptr(), many, &raw mut ts, core::ptr::null()).is_ok_and(|ready| ready > 0);
    asked.map(|p| if any && p.revents != 0 { p.fd } else { -1 })
}

/// Makes the link that was just taken up known to the epoll instances and the threads that wait for the listener, and
/// lets go of the one that made room for it. Returns whether there was one. Called without `lock`.
fn enter_taken(l: &'static Listener, round: &mut Sweep) -> bool {
    if let Some(link) = round.gone.take() {
        let_go(link);
    }
    let fresh = round.fresh.take();
    if let Some(link) = fresh {
        if !listeners::link_taken(l, link) {
            page().fallback(Reason::NoDescriptors);
            let listed = {
                let _g = l.lock.lock();
                l.unlink(link)
            };
            if listed {
                let_go(link);
            }
        }
        link.put();
    }
    if core::mem::take(&mut round.news) {
        // A thread that goes to sleep counts itself and then looks at what is there ([`Listener::arm`]); this one
        // has stored what is there and then looks at the count. With a fence in between one sees the other.
        fence(Ordering::SeqCst);
        if l.waiters.load(Ordering::SeqCst) > 0 {
            bell::ring_all();
        }
    }
    fresh.is_some()
}

/// Whether the listener may take up a further link of this user.
fn has_room(l: &Listener, uid: u32) -> bool {
    !matches!(crowd::room(l.links(), User::numbered(uid)), Room::Full)
}

/// Takes up clients that wait at the rendezvous, in a call that is about to take a connect from the links that are known, which
/// may be younger than theirs; returns whether there was one. A process that has siblings takes up one of them: clients wait
/// there in the order in which they came, so what the first of them has is older than what the others have.
pub(crate) fn take_older(l: &'static Listener) -> bool {
    take_at_doors(l, |_| true, false)
}

/// Takes up clients that wait at the doors of a listener that this process leaves, or is about to: some at a time; returns whether
/// there were any. Nobody may come for those that are left, since a process that ends stays counted as a sibling.
pub(crate) fn take_last(l: &'static Listener) -> bool {
    take_at_doors(l, |_| true, true)
}

/// Takes up clients as [`Listener::take_if`] does, whatever waits here. `all`: nothing is left at the doors for siblings.
fn take_at_doors(l: &'static Listener, wanted: impl Fn(&Listener) -> bool, all: bool) -> bool {
    let mut any = false;
    let mut round = Sweep { budget: HELLOS_PER_ACCEPT, ..Sweep::default() };
    // epoll's work for a new link takes locks that come before this one in the order: so it is done after this one
    // is released.
    loop {
        let more = {
            let _g = l.lock.lock();
            wanted(l) && l.collect(&mut round)
        };
        any |= round.has_something() && enter_taken(l, &mut round);
        // A process that has siblings takes up no more than it can serve, as it would take one connection from the
        // kernel's queue: what waits at the rendezvous can be taken up by any of them.
        if !more || (!all && l.has_siblings() && l.queued()) {
            return any;
        }
    }
}

impl Listener {
    /// Takes up every client that waits at the rendezvous; returns whether there was one.
    pub fn take_links(&'static self) -> bool {
        self.take_if(|_| true)
    }

    /// Takes up clients that wait at the rendezvous, if `wanted` returns true under the lock; returns whether there was
    /// one. The number per call is limited: the other clients keep waiting, and the rendezvous stays readable.
    pub(crate) fn take_if(&'static self, wanted: impl Fn(&Listener) -> bool) -> bool {
        // A program that does not accept what waits here finds the rendezvous readable again and again: then what waits
        // there is taken up all the same, or each of its sleeps would end at once.
        if self.has_siblings() && self.queued() && self.passed_over.swap(1, Ordering::Relaxed) == 0 {
            return false;
        }
        take_at_doors(self, wanted, false)
    }

    /// To be called before a process that has siblings goes off to serve a connection for any time: takes up the clients
    /// whose Hello has come meanwhile, and turns the others away, which then come to the rendezvous once more. Left here they
    /// would wait for this process, though others are idle.
    pub(crate) fn leave_hellos(&'static self) {
        if self.hellos().next().is_none() {
            return;
        }
        let mut round = Sweep { budget: HELLOS_PER_ACCEPT, ..Sweep::default() };
        loop {
            let more = {
                let _g = self.lock.lock();
                self.collect_hellos(&mut round)
            };
            enter_taken(self, &mut round);
            if !more {
                break;
            }
        }
        let _g = self.lock.lock();
        for cell in &self.hellos {
            let fd = cell.swap(0, Ordering::Relaxed) - 1;
            if fd >= 0 {
                listeners::forget_hello(self, fd);
                guard::dismiss(reserved_back(fd));
            }
        }
    }

    /// Takes up the next of the clients whose Hello has come; true if there is one. Called under `lock`.
    #[inline]
    fn collect_hellos(&'static self, round: &mut Sweep) -> bool {
        let backlog = self.backlog.load(Ordering::Relaxed);
        let room = |uid| has_room(self, uid);
        for cell in &self.hellos {
            let fd = cell.load(Ordering::Relaxed);
            if fd != 0 && round.budget > 0 && readable(fd - 1) {
                cell.store(0, Ordering::Relaxed);
                round.budget -= 1;
                listeners::forget_hello(self, fd - 1);
                self.taken(admission::receive_hello(reserved_back(fd - 1), backlog, room), round);
                if round.fresh.is_some() {
                    return true;
                }
            }
        }
        false
    }

    /// Takes up the next client; true if there may be more of them and the sweep may go on. Called under `lock`.
    fn collect(&'static self, round: &mut Sweep) -> bool {
        if self.collect_hellos(round) {
            return true;
        }
        let backlog = self.backlog.load(Ordering::Relaxed);
        let room = |uid| has_room(self, uid);
        let asked = knocked(self.rendezvous_fd(), self.entrance.fd());
        if asked == [-1; 2] {
            self.starved.store(0, Ordering::Relaxed);
            self.announced.store(0, Ordering::Relaxed);
        }
        for door in asked.into_iter().filter(|door| *door >= 0) {
            #[allow(unsafe_code)]
            // SAFETY: `door` is our open descriptor, which is closed only under `lock`.
            let sock = unsafe { BorrowedFd::borrow_raw(door) };
            while round.budget > 0 {
                round.budget -= 1;
                match admission::accept_link(sock, backlog, room) {
                    Taken::Nobody => {
                        self.starved.store(0, Ordering::Relaxed);
                        break;
                    }
                    Taken::Shut => {
                        self.shut.store(1, Ordering::Relaxed);
                        return false;
                    }
                    Taken::Starved => {
                        self.starved.store(1, Ordering::Relaxed);
                        return false;
                    }
                    t => self.taken(t, round),
                }
                if round.fresh.is_some() {
                    return true;
                }
            }
        }
        false
    }

    fn taken(&'static self, t: Taken, round: &mut Sweep) {
        match t {
            Taken::Link(link) => {
                if let Room::Of(idle) = crowd::room(self.links(), User::of(link)) {
                    self.unlink(idle);
                    round.gone = Some(idle);
                }
                crowd::entered(link);
                link.owner.store(core::ptr::from_ref(self) as usize, Ordering::Release);
                if let Some(segment) = link.segment() {
                    segment.set_served_by(served_by(self));
                }
                link.next.set(self.links.get());
                note_taken_up(self, link);
                link.hold();
                self.links.store(Some(link));
                round.fresh = Some(link);
                round.news = true;
            }
            Taken::Later(fd) | Taken::Unable(fd) => {
                let fd = fd.into_raw_fd();
                if let Some(cell) = self.hello_place(fd) {
                    let old = cell.swap(fd + 1, Ordering::Relaxed);
                    if old != 0 {
                        listeners::forget_hello(self, old - 1);
                        guard::dismiss(reserved_back(old - 1));
                    }
                    listeners::watch_hello(self, fd);
                    round.news = true;
                }
            }
            Taken::Refused | Taken::Nobody | Taken::Starved | Taken::Shut => {}
        }
    }

    /// The place in which the client `fd` may wait until its Hello comes: a free one; else that of another client of
    /// its user, so that many clients of one user do not push out those of others; else any.
    fn hello_place(&self, fd: i32) -> Option<&AtomicI32> {
        let user = |fd| raw::peer_credentials(fd).ok().map(|(_, uid)| uid);
        let mut places = self.hellos.iter();
        let at = self.next_hello.fetch_add(1, Ordering::Relaxed) as usize % HELLOS;
        let mine = user(fd);
        let in_turn = |i: usize| self.hellos.get((at + i) % HELLOS);
        places
            .find(|cell| cell.load(Ordering::Relaxed) == 0)
            .or_else(|| (0..HELLOS).filter_map(in_turn).find(|c| user(c.load(Ordering::Relaxed) - 1) == mine))
            .or_else(|| in_turn(0))
    }

    /// Takes a link out of the list; false if another thread has done so. Under `lock`.
    fn unlink(&'static self, link: &'static Link) -> bool {
        let was_there = self.links.take_out(link, |link| &link.next);
        if was_there {
            crowd::link_removed(link);
        }
        was_there
    }
}

/// Lets go of a link that was removed from its listener's list. Its client makes further connects by TCP. Connections
/// that other threads have accepted meanwhile go on, and have the link as long as they live.
fn let_go(link: &'static Link) {
    hand_on(core::iter::once(link));
    if link.is_idle() {
        link.dismiss();
    }
    subscription::link_gone(link);
    link.put();
}
