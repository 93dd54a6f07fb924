//! The companion connection of one queue pair: see [`companions`](crate::rdma::engine::companions).

use crate::rdma::engine::companions::attempt::{Attempt, COMPANION_CONNECT};
use netacc_sys::reserved_fds;
use netacc_wire::companion::TOKEN;

/// The server's host waits longer (ns): the client may try one port after the other.
const COMPANION_AWAITED: u64 = 3 * COMPANION_CONNECT;

/// A queue pair's companion connection.
#[derive(Debug)]
pub(in crate::rdma::engine) enum Companion {
    /// The queue pair has no companion connection.
    None,
    /// The other side is to connect it, with this token, and began to when the clock said so (ns).
    Awaited([u8; TOKEN], u64),
    /// Client's host: it is being connected.
    Connecting(Attempt),
    /// The companion connection is there.
    Ready(i32),
}

impl Companion {
    pub fn fd(&self) -> Option<i32> {
        match self {
            Companion::Connecting(attempt) => attempt.fd(),
            Companion::Ready(fd) => Some(*fd),
            Companion::None | Companion::Awaited(..) => None,
        }
    }

    /// The token of the companion that the other side is to connect, if it is to connect one.
    pub fn awaits(&self) -> Option<&[u8; TOKEN]> {
        match self {
            Companion::Awaited(token, _) => Some(token),
            _ => None,
        }
    }

    /// Closes a companion connection that is not needed any more.
    pub fn close(&mut self) {
        if let Some(fd) = core::mem::replace(self, Companion::None).fd() {
            reserved_fds::close(fd);
        }
    }

    /// Its socket, which the caller has then; -1 if it is still to come. `None`: there is none.
    pub fn take(&mut self) -> Option<i32> {
        match *self {
            Companion::None => None,
            Companion::Awaited(..) | Companion::Connecting(..) => Some(-1),
            Companion::Ready(fd) => {
                *self = Companion::None;
                Some(fd)
            }
        }
    }

    /// Whether it is there or on its way.
    pub fn is_hoped_for(&self) -> bool {
        !matches!(self, Companion::None)
    }

    /// Whether it should be there by now.
    pub fn is_late(&self, now: u64) -> bool {
        match self {
            Companion::Awaited(_, since) => now.saturating_sub(*since) > COMPANION_AWAITED,
            Companion::Connecting(attempt) => attempt.is_late(now),
            Companion::None | Companion::Ready(_) => false,
        }
    }
}
