//! What a socket keeps of an upgrade to RDMA (see [`crate::switch::upgrade`]).

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use netacc_wire::companion::TOKEN;

/// What is kept of a candidate whose other end is on another host.
#[derive(Debug, Default)]
pub struct Candidate {
    /// A client: when to ask (next), or when it has asked; a server: until when it may be asked.
    pub(crate) when: AtomicU64,
    /// A server: the number of read bytes at which it is prepared; 0: as far as is known, never.
    pub(crate) wanted: AtomicU64,
    pub(crate) token: [AtomicU64; 2],
    /// Calls that are sending without the lock.
    pub(crate) sending: AtomicU32,
    /// An error of the kernel's that a call got that only looked; the next call reports it.
    pub(crate) error: AtomicI32,
}

impl Candidate {
    /// A fresh one, for another connection.
    pub(crate) fn reset(&self) {
        for w in [&self.when, &self.wanted] {
            w.store(0, Ordering::Relaxed);
        }
        self.sending.store(0, Ordering::Relaxed);
        self.error.store(0, Ordering::Relaxed);
    }

    pub(crate) fn set_token(&self, token: [u8; TOKEN]) {
        let n = u128::from_ne_bytes(token);
        let [a, b] = &self.token;
        a.store(n as u64, Ordering::Relaxed);
        b.store((n >> 64) as u64, Ordering::Relaxed);
    }

    pub(crate) fn token(&self) -> [u8; TOKEN] {
        let [a, b] = &self.token;
        (u128::from(b.load(Ordering::Relaxed)) << 64 | u128::from(a.load(Ordering::Relaxed))).to_ne_bytes()
    }
}
