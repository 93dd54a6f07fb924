//! Connections to a stranger's liveness socket that could not be made for want of something, and are made again.
//!
//! Only the kernel's word that nobody listens there proves that the peer's last holder has ended. A process that is
//! short of descriptors or memory does not get an answer at all, and where the peer's backlog is full, somebody does
//! listen. So such a *dial* is owed: threads make it again when they look at the connection or are about to sleep.
//! Meanwhile the end of the previous connection is not reported to the sleeping threads again and again.

use crate::shm::endpoint::View;
use crate::shm::liveness::{Dialed, dial};
use crate::shm::registry;
use crate::shm::side_machines::{PEER_GONE, PEER_LIVENESS_CHANGED};
use crate::shm::{ShmEndpoint, guard::dismiss_shared};
use crate::timeouts;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use netacc_sys::{raw, reserved_fds, time};

/// Largest number of connections that a process makes to one liveness socket. Each of the peer's sharers ends one when
/// it leaves; a hostile peer could end one after the other.
const DIALS: u32 = 256;

const REDIAL: u64 = time::ns(timeouts::REDIAL);
/// [`timeouts::REDIAL_WITHOUT_PEER`] in units of [`tick`].
const WITHOUT_PEER: u32 = (time::ns(timeouts::REDIAL_WITHOUT_PEER) >> 24) as u32;

/// Number of endpoints that owe a dial.
static OWED: AtomicU32 = AtomicU32::new(0);
/// Time ([`time::now`]) at which the owed dials are made again.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The time in units of 17 ms.
fn tick() -> u32 {
    (time::now() >> 24) as u32
}

/// Whether any dial is owed.
#[inline]
pub fn is_owed() -> bool {
    OWED.load(Ordering::Relaxed) != 0
}

/// To be called before a sleep, without any lock: makes owed dials again when they are due. Returns the time
/// ([`time::now`]) at which this is due the next time, if any dial is still owed.
#[cold]
pub fn make_owed_dials() -> Option<u64> {
    let now = time::now();
    // Relaxed: if two threads come at once, the dials are made once more than needed.
    if now >= NEXT.load(Ordering::Relaxed) {
        NEXT.store(now + REDIAL, Ordering::Relaxed);
        registry::each_used(|link| {
            for ep in link.endpoints() {
                ep.redial();
            }
        });
    }
    is_owed().then(|| NEXT.load(Ordering::Relaxed))
}

impl ShmEndpoint {
    /// Connects to the listening liveness socket of a peer that is a stranger and is about to fork with connection
    /// `generation`.
    pub(crate) fn learn_token(&self, generation: u32, token: u64) {
        if !self.expects(generation) || self.peer_liveness_generation() == Some(generation) {
            return;
        }
        self.peer_token.store(token, Ordering::Relaxed);
        self.dialed.store(1, Ordering::Relaxed);
        match dial(token) {
            Dialed::Connected(fd) => self.learn_peer_liveness(generation, fd),
            Dialed::Gone => self.lose_peer(),
            Dialed::NotNow => self.owe_dial(generation),
        }
    }

    /// Whether the end of the peer liveness socket means that the peer's last holder has ended. If the peer's liveness
    /// socket listens and can be connected to once more, only the previous connection has ended, and the new one
    /// becomes the peer liveness socket.
    pub(super) fn has_peer_ended(&self) -> bool {
        let token = self.peer_token.load(Ordering::Relaxed);
        if token == 0 || self.peer_liveness_fd() < 0 || self.dialed.load(Ordering::Relaxed) >= DIALS {
            return true;
        }
        let dialed = match dial(token) {
            // The new connection replaces the old one, so one of the reserved descriptors is free again soon.
            Dialed::NotNow if reserved_fds::release_reserve() => {
                let dialed = dial(token);
                reserved_fds::reserve();
                dialed
            }
            dialed => dialed,
        };
        match dialed {
            Dialed::Connected(fresh) => self.replace_peer_liveness(fresh),
            Dialed::Gone => return true,
            // A closed slot is looked at again before it is used.
            Dialed::NotNow if self.is_live() => self.owe_dial(self.generation.load(Ordering::Relaxed)),
            Dialed::NotNow => {}
        }
        false
    }

    /// Makes the reserved descriptor `fresh` the peer liveness socket in place of one that has ended.
    fn replace_peer_liveness(&self, fresh: i32) {
        let fd = self.peer_liveness_fd();
        if fd < 0 {
            return dismiss_shared(fresh);
        }
        self.dialed.fetch_add(1, Ordering::Relaxed);
        // The new connection gets the same number, which another thread may be polling. The old file is closed by
        // `dismiss_shared`, since it may hold descriptors whose close blocks.
        let old = reserved_fds::copy(fd);
        let _ = raw::dup3(fresh, fd, libc::O_CLOEXEC);
        reserved_fds::close(fresh);
        if let Ok(old) = old {
            dismiss_shared(old);
        }
        self.state.set(PEER_LIVENESS_CHANGED);
    }

    fn lose_peer(&self) {
        if self.is_live() {
            self.state.set(PEER_GONE);
            self.poke_self();
        }
    }

    fn owe_dial(&self, generation: u32) {
        let owed = u64::from(generation) << 32 | u64::from(tick());
        self.redialed.store(tick(), Ordering::Relaxed);
        if self.owed.swap(owed, Ordering::Relaxed) == 0 {
            OWED.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn settle_dial(&self, owed: u64) -> bool {
        let settled = self.owed.compare_exchange(owed, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if settled {
            OWED.fetch_sub(1, Ordering::Relaxed);
        }
        settled
    }

    /// Whether the connection owes a dial, so that it is not known whether the peer's last holder has ended.
    #[inline]
    pub(super) fn owes_dial(&self) -> bool {
        let owed = self.owed.load(Ordering::Relaxed);
        owed != 0 && (owed >> 32) as u32 == self.generation.load(Ordering::Relaxed)
    }

    /// Whether the connection still owes a dial after another attempt, which is made at most every 17 ms.
    #[inline]
    pub(super) fn still_owes_dial(&self) -> bool {
        self.owes_dial() && {
            self.redial();
            self.owes_dial()
        }
    }

    /// Makes a dial again that is owed.
    #[cold]
    fn redial(&self) {
        let owed = self.owed.load(Ordering::Relaxed);
        let generation = (owed >> 32) as u32;
        if owed == 0 || self.redialed.swap(tick(), Ordering::Relaxed) == tick() {
            return;
        }
        if !self.expects(generation) {
            // The connection has ended meanwhile.
            self.settle_dial(owed);
            return;
        }
        match dial(self.peer_token.load(Ordering::Relaxed)) {
            Dialed::Connected(fd) if !self.settle_dial(owed) => dismiss_shared(fd),
            Dialed::Connected(fd) if self.peer_liveness_generation() == Some(generation) => {
                self.replace_peer_liveness(fd);
                self.poke_self();
            }
            Dialed::Connected(fd) => self.learn_peer_liveness(generation, fd),
            Dialed::Gone => self.lose_peer_that_owes(owed),
            // Nobody may be left who could tell, and a thread must not wait for ever.
            Dialed::NotNow if tick().wrapping_sub(owed as u32) > WITHOUT_PEER && !self.link().has_peer_process() => {
                self.lose_peer_that_owes(owed);
            }
            Dialed::NotNow => {}
        }
    }

    fn lose_peer_that_owes(&self, owed: u64) {
        self.lose_peer();
        self.settle_dial(owed);
    }

    /// Whether the loss of the link says that the peer's last holder has ended: not while a dial is owed.
    pub(super) fn tells_by_link(&self, v: &View) -> bool {
        !self.is_orphan(v) && !self.still_owes_dial()
    }
}
