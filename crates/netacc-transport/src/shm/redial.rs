//! Connections to a stranger's liveness socket that could not be made for want of something, and are made again.
//!
//! Only the kernel's word that nobody listens there proves that the peer's last holder has ended. A process that is
//! short of descriptors or memory does not get an answer at all, and where the peer's backlog is full, somebody does
//! listen. So such a *dial* is owed: threads make it again when they look at the connection or are about to sleep.
//! Meanwhile the end of the previous connection is not reported to the sleeping threads again and again.

use crate::num::low_half;
use crate::shm::liveness::{Dialed, Liveness, dial};
pub use crate::shm::owed_dial::is_owed;
use crate::shm::owed_dial::tick;
use crate::shm::registry;
use crate::shm::side_machines::{PEER_GONE, PEER_LIVENESS_CHANGED};
use crate::shm::slot_side::SlotSide;
use crate::shm::{ShmEndpoint, guard::dismiss_shared};
use crate::timeouts;
use core::sync::atomic::{AtomicU64, Ordering};
use netacc_sys::{reserved_fds, time};

/// Largest number of connections that a process makes to one liveness socket. Each of the peer's sharers ends one when
/// it leaves; a hostile peer could end one after the other.
const DIALS: u32 = 256;

const REDIAL: u64 = time::ns(timeouts::REDIAL);
/// [`timeouts::REDIAL_WITHOUT_PEER`] in units of [`tick`].
const WITHOUT_PEER: u32 = low_half(time::ns(timeouts::REDIAL_WITHOUT_PEER) >> 24);

/// Time ([`time::now`]) at which the owed dials are made again.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// To be called before a sleep, without any lock: makes owed dials again when they are due, and reads control sockets
/// whose first message has waited for a free number. Returns the time
/// ([`time::now`]) at which this is due the next time, if anything is still owed.
#[cold]
pub fn make_owed_dials() -> Option<u64> {
    let now = time::now();
    // Relaxed: if two threads come at once, the dials are made once more than needed.
    if now >= NEXT.load(Ordering::Relaxed) {
        NEXT.store(now + REDIAL, Ordering::Relaxed);
        registry::each_used(|link| {
            if link.control.is_stalled() {
                link.service();
            }
            for ep in link.endpoints() {
                redial(ep);
            }
        });
    }
    is_owed().then(|| NEXT.load(Ordering::Relaxed))
}

/// Whether the connection still owes a dial after another attempt, which is made at most every 17 ms.
#[inline]
pub(super) fn is_still_owed_by(ep: &ShmEndpoint) -> bool {
    ep.liveness.owes_dial(&ep.side) && {
        redial(ep);
        ep.liveness.owes_dial(&ep.side)
    }
}

/// Makes a dial again that is owed.
#[cold]
fn redial(ep: &ShmEndpoint) {
    let Some(word) = ep.liveness.owed_dial.take_turn() else { return };
    let generation = (word >> 32) as u32;
    let settle = || ep.liveness.owed_dial.settle(word);
    if !ep.side.expects(generation) {
        // The connection has ended meanwhile.
        settle();
        return;
    }
    match dial(ep.liveness.peer_token.get()) {
        Dialed::Connected(fd) if !settle() => dismiss_shared(fd),
        Dialed::Connected(fd) if ep.liveness.peer_generation() == Some(generation) => {
            ep.liveness.replace_peer(&ep.side, fd);
            ep.poke_self();
        }
        Dialed::Connected(fd) => ep.learn_peer_liveness(generation, fd),
        // Nobody may be left who could tell, and a thread must not wait for ever.
        Dialed::NotNow if tick().wrapping_sub(low_half(word)) <= WITHOUT_PEER || ep.side.link().peer.lives() => {}
        Dialed::NotNow | Dialed::Gone => {
            lose_peer(ep);
            settle();
        }
    }
}

/// Notes that the peer has passed its liveness socket for connection `generation` and that it was lost. The peer's
/// sharers see an end instead, so the connection has ended for them; nothing would tell this side of their end.
pub(super) fn miss_liveness(ep: &ShmEndpoint, generation: u32) {
    if ep.side.expects(generation) && !ep.liveness.has_peer() {
        lose_peer(ep);
    }
}

fn lose_peer(ep: &ShmEndpoint) {
    if ep.side.is_live() {
        ep.side.state.set(PEER_GONE);
        ep.poke_self();
    }
}

impl Liveness {
    /// Whether the connection owes a dial, so that it is not known whether the peer's last holder has ended.
    #[inline]
    pub(super) fn owes_dial(&self, side: &SlotSide) -> bool {
        self.owed_dial.is_owed_by(side.generation.load(Ordering::Relaxed))
    }

    /// Whether the end of the peer liveness socket means that the peer's last holder has ended. If the peer's liveness
    /// socket listens and can be connected to once more, only the previous connection has ended, and the new one
    /// becomes the peer liveness socket.
    pub(super) fn has_peer_ended(&self, side: &SlotSide) -> bool {
        let token = self.peer_token.get();
        if token == 0 || self.peer_fd() < 0 || self.dialed.load(Ordering::Relaxed) >= DIALS {
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
            Dialed::Connected(fresh) => self.replace_peer(side, fresh),
            Dialed::Gone => return true,
            // A closed slot is looked at again before it is used.
            Dialed::NotNow if side.is_live() => self.owed_dial.owe(side.generation.load(Ordering::Relaxed)),
            Dialed::NotNow => {}
        }
        false
    }

    /// Makes the reserved descriptor `fresh` the peer liveness socket in place of one that has ended.
    fn replace_peer(&self, side: &SlotSide, fresh: i32) {
        let fd = self.peer_fd();
        if fd < 0 {
            return dismiss_shared(fresh);
        }
        self.dialed.fetch_add(1, Ordering::Relaxed);
        // The new connection gets the same number, which another thread may be polling. The old file is closed by
        // `dismiss_shared`, since it may hold descriptors whose close blocks.
        let old = reserved_fds::copy(fd);
        let _ = reserved_fds::replace(fd, fresh);
        reserved_fds::close(fresh);
        if let Ok(old) = old {
            dismiss_shared(old);
        }
        side.state.set(PEER_LIVENESS_CHANGED);
    }
}

impl ShmEndpoint {
    /// Connects to the listening liveness socket of a peer that is a stranger and is about to fork with connection
    /// `generation`.
    pub(crate) fn learn_token(&self, generation: u32, token: u64) {
        if !self.side.expects(generation) || self.liveness.peer_generation() == Some(generation) {
            return;
        }
        self.liveness.peer_token.set(token);
        self.liveness.dialed.store(1, Ordering::Relaxed);
        match dial(token) {
            Dialed::Connected(fd) => self.learn_peer_liveness(generation, fd),
            Dialed::Gone => lose_peer(self),
            Dialed::NotNow => self.liveness.owed_dial.owe(generation),
        }
    }
}
