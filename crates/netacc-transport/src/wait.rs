//! The set of descriptors on which a thread sleeps while it waits for one or many connections.

use alloc::vec::Vec;
use libc::pollfd;
use netacc_sys::errno::{Answer, Errno, Fail, Result};
use netacc_sys::time::Deadline;
use netacc_sys::{cancel, delivery, raw, sleeping, time};

extern crate alloc;

/// Number of descriptors that are kept without allocating: enough for any wait on one connection.
const INLINE: usize = 16;

/// The first step (ns) of a sleep without a wake-up, or whose wake-up the peer may fail to send.
const STEP: i64 = 1_000_000;

/// The length (ns) of the step after `steps` steps without an event, at most four seconds: so a long sleep costs hardly
/// any CPU time.
pub fn longer(steps: u32) -> i64 {
    STEP << steps.min(12)
}

/// A source of the wakers on which threads sleep: one end of a link between two processes.
pub trait WakerSource: Sync {
    /// Borrows a waker for a thread that goes to sleep.
    fn borrow_waker(&self) -> Result<u32>;

    /// Gives a borrowed waker back.
    fn return_waker(&self, id: u32);

    /// The descriptor of waker `id`, or -1.
    fn waker_fd(&self, id: u32) -> i32;

    /// Rings waker `id`, on which a thread of this process sleeps.
    fn ring(&self, id: u32);

    /// Takes the ringing of waker `id` back. To be called before the look at what it may have rung for.
    fn silence(&'static self, id: u32);

    /// The descriptor that has messages of the other process, or -1 if none can come any more.
    fn control_to_poll(&self) -> i32;

    /// Handles the messages of the other process.
    fn service(&'static self);

    /// Counts a thread that waits as a user of the link; false if the link has none any more. After the last user the
    /// link's memory is gone.
    fn hold(&'static self, on: WaitOn) -> bool;

    /// Undoes [`WakerSource::hold`].
    fn let_go(&'static self, on: WaitOn);
}

/// What a thread that is counted as a user of a link waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOn {
    /// Connects at the listener. A link on which nothing else is open counts as idle.
    Listener,
    /// One of the connections, which keeps the link from being idle as long as it is open.
    Connection,
}

/// A link this wait is armed on, and the waker borrowed from it.
#[derive(Clone, Copy)]
struct Borrowed {
    link: &'static dyn WakerSource,
    waker: u32,
    /// Index of its waker in the poll list, which its control socket follows; without a waker, that of the
    /// control socket.
    at: usize,
    /// What the set first held the link for, if it holds it.
    held: Option<WaitOn>,
}

/// A place without a descriptor, which the kernel ignores.
const NOTHING: pollfd = pollfd { fd: -1, events: 0, revents: 0 };

/// The descriptors of one wait and the wakers borrowed for it.
pub struct WaitSet {
    inline: [pollfd; INLINE],
    inline_len: usize,
    /// Used instead of `inline` once that is full.
    spill: Vec<pollfd>,
    borrowed: [Option<Borrowed>; 4],
    more: Vec<Borrowed>,
    /// Set when no waker could be borrowed (no descriptor left): the sleep is made in short steps.
    pub bounded: bool,
    /// Set when another sharer may take the byte that was to wake this thread: the sleep is made in steps, each longer
    /// than the one before.
    pub shared: bool,
    /// Number of steps without an event, which the caller keeps from one set to the next.
    pub steps: u32,
    /// Latest end of the sleep ([`time::now`]), because bytes that are held back may be read from then on; 0: no limit.
    until: u64,
    /// Set when another sharer has stored the mark that requests the byte, so this thread must not remove it.
    pub(crate) mark_was_set: bool,
}

impl core::fmt::Debug for WaitSet {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "WaitSet({} descriptors)", self.len())
    }
}

impl Default for WaitSet {
    fn default() -> WaitSet {
        WaitSet {
            inline: [NOTHING; INLINE],
            inline_len: 0,
            spill: Vec::new(),
            borrowed: [None; 4],
            more: Vec::new(),
            bounded: false,
            shared: false,
            steps: 0,
            until: 0,
            mark_was_set: false,
        }
    }
}

impl WaitSet {
    /// An empty set.
    pub fn new() -> WaitSet {
        WaitSet::default()
    }

    /// The descriptors, and what the kernel reported for each in the last sleep.
    fn places(&self) -> &[pollfd] {
        if self.spill.is_empty() { self.inline.get(..self.inline_len).unwrap_or_default() } else { &self.spill }
    }

    /// Number of descriptors in the set.
    pub fn len(&self) -> usize {
        self.places().len()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Limits the sleep to the time `until` ([`time::now`]).
    pub fn wake_at(&mut self, until: u64) {
        self.until = if self.until == 0 { until } else { self.until.min(until) };
    }

    /// Adds a descriptor and returns its index.
    pub fn add(&mut self, fd: i32, events: i16) -> usize {
        let p = pollfd { fd, events, revents: 0 };
        if self.spill.is_empty() {
            if let Some(place) = self.inline.get_mut(self.inline_len) {
                *place = p;
                self.inline_len += 1;
                return self.inline_len - 1;
            }
            self.spill.extend(self.inline);
        }
        self.spill.push(p);
        self.spill.len() - 1
    }

    /// Adds places without a descriptor until there are `n`.
    pub fn fill_up(&mut self, n: usize) {
        while self.len() < n {
            self.add(-1, 0);
        }
    }

    /// The descriptor at index `i`.
    pub fn fd(&self, i: usize) -> i32 {
        self.places().get(i).map_or(-1, |p| p.fd)
    }

    /// What the kernel reported for index `i`.
    pub fn revents(&self, i: usize) -> i16 {
        self.places().get(i).map_or(0, |p| p.revents)
    }

    /// What the kernel reported for descriptor `fd`, which a caller adds with the same events each time; `None`: the set
    /// does not have it.
    pub fn events_of(&self, fd: i32) -> Option<i16> {
        self.places().iter().find(|p| p.fd == fd).map(|p| p.revents)
    }

    /// Whether descriptor `fd` reported something in the last sleep, and no other did.
    pub fn only_reported(&self, fd: i32) -> bool {
        fd >= 0 && self.places().iter().all(|p| (p.revents != 0) == (p.fd == fd))
    }

    fn borrowed(&self) -> impl Iterator<Item = Borrowed> + '_ {
        self.borrowed.iter().flatten().chain(self.more.iter()).copied()
    }

    fn on(&self, link: &dyn WakerSource) -> Option<Borrowed> {
        self.borrowed().find(|b| core::ptr::addr_eq(b.link, link))
    }

    /// The waker that [`WaitSet::waker`] got on `link`, or 0.
    pub fn waker_in(&self, link: &dyn WakerSource) -> u32 {
        self.on(link).map_or(0, |b| b.waker)
    }

    /// The waker of this wait on `link`, borrowed at the first call. It is 0 if none can be borrowed, and then the
    /// sleep is made in steps.
    pub fn waker(&mut self, link: &'static dyn WakerSource) -> u32 {
        if let Some(b) = self.on(link) {
            return b.waker;
        }
        let waker = link.borrow_waker().unwrap_or(0);
        let mut at = usize::MAX;
        if waker == 0 {
            self.bounded = true;
        } else {
            at = self.add(link.waker_fd(waker), libc::POLLIN);
        }
        let control = self.add(link.control_to_poll(), libc::POLLIN);
        if at == usize::MAX {
            at = control;
        }
        let b = Borrowed { link, waker, at, held: None };
        match self.borrowed.iter_mut().find(|b| b.is_none()) {
            Some(cell) => *cell = Some(b),
            None => self.more.push(b),
        }
        waker
    }

    /// Borrows a waker on `link` and counts the set as a user of the link as long as it exists: other threads may remove
    /// a listener's link, or switch a connection, while this one waits. False: the link has no user any more, and none of
    /// its words may be touched.
    pub fn hold(&mut self, link: &'static dyn WakerSource, on: WaitOn) -> bool {
        if self.holds(link) {
            return true;
        }
        if !link.hold(on) {
            return false;
        }
        self.waker(link);
        let mut all = self.borrowed.iter_mut().flatten().chain(&mut self.more);
        if let Some(b) = all.find(|b| core::ptr::addr_eq(b.link, link)) {
            b.held = Some(on);
        }
        true
    }

    /// Whether the set counts as a user of `link`.
    pub fn holds(&self, link: &dyn WakerSource) -> bool {
        self.on(link).is_some_and(|b| b.held.is_some())
    }

    /// Sleeps until something happens on a descriptor, the deadline passes or a signal comes (`EINTR`). Wakers that
    /// were written are reset, and control sockets are read. `sigmask` as for ppoll(2), may be null.
    pub fn sleep(&mut self, deadline: Deadline, sigmask: *const core::ffi::c_void) -> Answer<usize> {
        let mut left = deadline.left();
        let step = if self.bounded { STEP } else { longer(self.steps) };
        if (self.bounded || self.shared) && !(0..=step).contains(&left) {
            left = step;
        }
        if self.until != 0 {
            let due = i64::try_from(self.until.saturating_sub(time::now())).unwrap_or(i64::MAX);
            left = if left < 0 { due } else { left.min(due) };
        }
        // The handler of a signal that was kept runs when the call is over.
        let ends = left != 0 && delivery::is_due();
        if ends {
            left = 0;
        }
        let mut ts = libc::timespec { tv_sec: left.max(0) / 1_000_000_000, tv_nsec: left.max(0) % 1_000_000_000 };
        let ts_ptr = if left < 0 { core::ptr::null_mut() } else { &raw mut ts };
        let poll = |fds, n| match left {
            0 => Ok(raw::ppoll(fds, n, ts_ptr, sigmask)?),
            _ => cancel::asleep(sigmask, |sigmask| sleeping::ppoll(fds, n, ts_ptr, sigmask)),
        };
        let r = if self.spill.is_empty() {
            poll(self.inline.as_mut_ptr(), self.inline_len)
        } else {
            match poll(self.spill.as_mut_ptr(), self.spill.len()) {
                // RLIMIT_NOFILE counts the program's entries without a descriptor, too, and ours come on top.
                Err(Fail::Errno(Errno::INVAL)) => {
                    let mut there: Vec<pollfd> = self.spill.iter().filter(|p| p.fd >= 0).copied().collect();
                    let r = poll(there.as_mut_ptr(), there.len());
                    let all = self.spill.iter_mut().filter(|p| p.fd >= 0);
                    all.zip(there).for_each(|(p, seen)| p.revents = seen.revents);
                    r
                }
                r => r,
            }
        };
        let n = r?;
        if n > 0 {
            self.serve();
        }
        if ends && n == 0 { Err(Fail::INTR) } else { Ok(n) }
    }

    fn serve(&self) {
        for b in self.borrowed() {
            let control = if b.waker == 0 { b.at } else { b.at + 1 };
            if b.waker != 0 && self.revents(b.at) != 0 {
                b.link.silence(b.waker);
            }
            if self.revents(control) != 0 {
                b.link.service();
            }
        }
    }
}

impl Drop for WaitSet {
    fn drop(&mut self) {
        for b in self.borrowed() {
            if b.waker != 0 {
                b.link.return_waker(b.waker);
            }
            if let Some(on) = b.held {
                b.link.let_go(on);
            }
        }
    }
}
