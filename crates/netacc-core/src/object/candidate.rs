//! A socket's data about its upgrade to RDMA (see [`crate::switch::upgrade`]).

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use netacc_wire::companion::TOKEN;

/// Data of a candidate whose other end is on another host.
#[derive(Debug, Default)]
pub struct Candidate {
    /// At a client, the time of its next or its last request; at a server, the time until which a request is accepted.
    pub(crate) when: AtomicU64,
    /// At a server, the number of read bytes at which it is prepared; 0: no request names one.
    pub(crate) wanted: AtomicU64,
    pub(crate) token: [AtomicU64; 2],
    /// Number of calls that are sending without the lock.
    pub(crate) sending: AtomicU32,
    /// An error that the kernel returned to a look of ours; the next call of the program reports it.
    pub(crate) error: AtomicI32,
}

impl Candidate {
    /// Resets the data for another connection.
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
