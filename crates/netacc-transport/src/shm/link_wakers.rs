//! The wakers of both sides of a link, by their numbers, and those of our thread wakers that are free.

use crate::num;
use crate::shm::named_waker::{self, Emptied};
use crate::shm::segment::READY_SETS;
use crate::wakers;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use netacc_sys::reserved_fds;

/// Number of wakers per side: those below [`READY_SETS`] belong to ready sets, the rest to sleeping threads.
pub(super) const WAKERS: usize = 1024;

/// The wakers of one number on both sides: a descriptor + 1 each, or 0.
#[derive(Debug)]
pub(super) struct WakerPair {
    /// Our waker, which the peer rings. A negative number is that of one on which no thread may sleep any more.
    pub mine: AtomicI32,
    /// The peer's waker, which the peer passed to us.
    pub peers: AtomicI32,
}

/// The tokens of the wakers of one number that are sockets ([`super::named_waker`]); 0: the waker is an eventfd, or there
/// is none.
#[derive(Debug)]
pub(super) struct TokenPair {
    /// The token of our waker.
    mine: AtomicU64,
    /// The token by which the peer's waker is found.
    peers: AtomicU64,
}

/// The wakers of both sides. In a link those of ready sets lie apart from those of threads, so that one with few
/// connections touches few pages.
#[derive(Clone, Copy, Debug)]
pub struct Wakers<'a> {
    pub(super) of_ready_sets: &'a [WakerPair; READY_SETS],
    pub(super) of_threads: &'a [WakerPair; WAKERS - READY_SETS],
    pub(super) tokens: &'a [TokenPair; WAKERS],
}

impl<'a> Wakers<'a> {
    fn all(self) -> impl Iterator<Item = &'a WakerPair> {
        self.of_ready_sets.iter().chain(self.of_threads)
    }

    /// The wakers of both sides with this number.
    #[inline]
    fn pair(self, id: u32) -> Option<&'a WakerPair> {
        let id = id as usize;
        self.of_ready_sets.get(id).or_else(|| self.of_threads.get(id.wrapping_sub(READY_SETS)))
    }

    /// The descriptor of our waker `id`, or -1.
    #[inline]
    pub fn fd(self, id: u32) -> i32 {
        self.pair(id).map_or(0, |waker| waker.mine.load(Ordering::Relaxed)) - 1
    }

    /// Stores our waker `id`, which is an eventfd if the `token` is 0. False: there is no such number.
    pub(super) fn set(self, id: u32, fd: i32, token: u64) -> bool {
        let Some((waker, tokens)) = self.pair(id).zip(self.tokens.get(id as usize)) else { return false };
        // Most tokens stay 0, so that the array's pages stay untouched.
        if token != 0 {
            tokens.mine.store(token, Ordering::Relaxed);
        }
        // Release: a thread that finds the descriptor finds its token.
        waker.mine.store(fd + 1, Ordering::Release);
        true
    }

    /// The token of our waker `id` if it is a socket, else 0.
    fn token(self, id: u32) -> u64 {
        self.tokens.get(id as usize).map_or(0, |tokens| tokens.mine.load(Ordering::Relaxed))
    }

    /// Whether our waker `id` is a socket, which has to be emptied when it has rung.
    #[inline]
    pub fn is_named(self, id: u32) -> bool {
        self.token(id) != 0
    }

    /// Takes the ringing of our waker `id` back.
    pub(super) fn silence(self, id: u32) -> Emptied {
        let fd = self.fd(id);
        if fd >= 0 && self.is_named(id) {
            let is_of_ready_set = (id as usize) < READY_SETS;
            return if is_of_ready_set { named_waker::silence(fd) } else { named_waker::take_ring(fd) };
        }
        wakers::silence(fd);
        Emptied::Silent
    }

    /// Has no thread sleep on our waker `id` any more. Its number stays open until the link ends, since threads may be
    /// using it.
    pub(super) fn retire(self, id: u32) {
        if let Some(waker) = self.pair(id) {
            let _ = waker.mine.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |fd| Some(-fd.abs()));
        }
    }

    /// The token of the peer's waker `id`, if that is a socket; 0 otherwise.
    pub(super) fn peer_token(self, id: u32) -> u64 {
        self.tokens.get(id as usize).map_or(0, |tokens| tokens.peers.load(Ordering::Relaxed))
    }

    /// Stores the token of the peer's waker `id`; 0: this process cannot reach it.
    pub(super) fn learn_token(self, id: u32, token: u64) {
        if let Some(tokens) = self.tokens.get(id as usize) {
            // Relaxed: the word stands for itself, and whatever the token is, a datagram to its name does no harm.
            tokens.peers.store(token, Ordering::Relaxed);
        }
    }

    /// The peer's waker `id`, if we have it.
    pub(super) fn of_peer(self, id: u32) -> Option<i32> {
        Some(self.pair(id)?.peers.load(Ordering::Acquire) - 1).filter(|fd| *fd >= 0)
    }

    /// Stores a waker that the peer has passed.
    pub(super) fn learn(self, id: u32, fd: i32) {
        let old = self.pair(id).map_or(fd + 1, |waker| waker.peers.swap(fd + 1, Ordering::AcqRel));
        if old != 0 {
            reserved_fds::close(old - 1);
        }
    }

    /// Rings our own waker, because the peer has requested it by a message or for a thread of ours.
    pub(super) fn ring(self, id: u32) {
        // Acquire: see [`Wakers::set`].
        let fd = self.pair(id).map_or(0, |waker| waker.mine.load(Ordering::Acquire)) - 1;
        if fd >= 0 {
            match self.token(id) {
                0 => wakers::ring(fd),
                // The socket sends to itself. If it is full, it rings already.
                token => drop(named_waker::ring(fd, token)),
            }
        }
    }

    /// Writes all of our wakers.
    pub(super) fn ring_all(self) {
        for id in 0..const { num::constant(WAKERS) } {
            self.ring(id);
        }
    }

    /// The descriptors of all wakers of both sides; -1 where there is none.
    pub(super) fn descriptors(self) -> impl Iterator<Item = i32> {
        self.all().flat_map(|waker| [&waker.mine, &waker.peers]).map(|cell| cell.load(Ordering::Relaxed).abs() - 1)
    }

    /// Closes all wakers of both sides.
    pub(super) fn close(self) {
        self.close_ours(named_waker::close);
        for (waker, tokens) in self.all().zip(self.tokens) {
            take(&waker.peers).into_iter().for_each(reserved_fds::close);
            forget(&tokens.peers);
        }
    }

    /// In the child of a fork: closes the wakers that only the parent may use. The peer's stay, since every sharer may
    /// ring them.
    pub(super) fn leave_to_parent(self) {
        self.close_ours(named_waker::leave_to_parent);
    }

    /// Closes our wakers; those that are sockets by `close_named`.
    fn close_ours(self, close_named: fn(i32)) {
        for (waker, tokens) in self.all().zip(self.tokens) {
            if let Some(fd) = take(&waker.mine) {
                if forget(&tokens.mine) { close_named(fd) } else { reserved_fds::close(fd) }
            }
        }
    }
}

/// Takes a descriptor out of its cell, in which it is stored + 1.
fn take(cell: &AtomicI32) -> Option<i32> {
    // Most are unused, and are only loaded, so that the array's pages stay untouched.
    let is_used = cell.load(Ordering::Relaxed) != 0;
    let fd = if is_used { cell.swap(0, Ordering::Relaxed) } else { 0 };
    Some(fd.abs() - 1).filter(|fd| *fd >= 0)
}

/// Removes a token and returns whether there was one.
fn forget(cell: &AtomicU64) -> bool {
    cell.load(Ordering::Relaxed) != 0 && cell.swap(0, Ordering::Relaxed) != 0
}

/// Our thread wakers that exist and are free. They are used under the link's lock.
#[derive(Debug)]
pub(super) struct IdleWakers {
    idle: [AtomicU64; WAKERS / 64],
    /// Number of the next thread waker to make.
    next: AtomicU32,
}

impl IdleWakers {
    /// Begins with no waker.
    pub(super) fn begin(&self) {
        self.next.store(const { num::constant(READY_SETS) }, Ordering::Relaxed);
    }

    /// Takes a free waker.
    pub(super) fn take(&self) -> Option<u32> {
        let (i, w) = self.idle.iter().enumerate().find(|(_, w)| w.load(Ordering::Relaxed) != 0)?;
        let word = w.load(Ordering::Relaxed);
        w.store(word & (word - 1), Ordering::Relaxed);
        Some(num::small(i) * 64 + word.trailing_zeros())
    }

    /// Gives a waker back.
    pub(super) fn put(&self, id: u32) {
        if let Some(w) = self.idle.get(id as usize / 64) {
            w.fetch_or(1 << (id % 64), Ordering::Relaxed);
        }
    }

    /// The number of the next waker to make, if there is one.
    pub(super) fn next(&self) -> Option<u32> {
        Some(self.next.load(Ordering::Relaxed)).filter(|id| (*id as usize) < WAKERS)
    }

    /// Notes that waker `id`, the next one, was made.
    pub(super) fn made(&self, id: u32) {
        self.next.store(id + 1, Ordering::Relaxed);
    }

    /// Forgets all free wakers, which were closed. Words that are 0 stay untouched.
    pub(super) fn forget(&self) {
        for w in self.idle.iter().filter(|w| w.load(Ordering::Relaxed) != 0) {
            w.store(0, Ordering::Relaxed);
        }
    }
}
