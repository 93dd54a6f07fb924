//! The contract between the socket layer and a transport.

use crate::iov::Iov;
use crate::wait::WaitSet;
use netacc_sys::errno::Result;

/// What a connection is ready for: `EPOLL*` bits (epoll_ctl(2)), which `POLL*` share for these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness(pub u32);

impl Readiness {
    /// Data, end of data or an error can be read.
    pub const IN: u32 = libc::EPOLLIN as u32 | libc::EPOLLRDNORM as u32;
    /// A write would not block.
    pub const OUT: u32 = libc::EPOLLOUT as u32 | libc::EPOLLWRNORM as u32;
    /// The peer has ended its stream.
    pub const RDHUP: u32 = libc::EPOLLRDHUP as u32;
    /// Both directions are over.
    pub const HUP: u32 = libc::EPOLLHUP as u32;
    /// An error is pending.
    pub const ERR: u32 = libc::EPOLLERR as u32;

    /// Whether a reader would not block.
    pub fn readable(self) -> bool {
        self.0 & libc::EPOLLIN as u32 != 0
    }

    /// Whether a writer would not block.
    pub fn writable(self) -> bool {
        self.0 & libc::EPOLLOUT as u32 != 0
    }
}

/// What a waiter waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Something to read.
    pub read: bool,
    /// Room to write.
    pub write: bool,
}

/// The direction(s) of shutdown(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shut {
    /// `SHUT_RD`
    Read,
    /// `SHUT_WR`
    Write,
    /// `SHUT_RDWR`
    Both,
}

/// One side of an accelerated connection.
///
/// Reads are serialised by the caller, and so are writes; everything else may be called by any thread
/// at any time. Errors and end-of-stream are reported exactly as a TCP socket reports them (tcp(7)):
/// bytes that arrived first, then a pending error once, then 0 or `EPIPE`.
pub trait Endpoint: Sync {
    /// Copies as much of `src` as fits; `EAGAIN` when nothing does.
    fn try_write(&self, src: &mut Iov<'_>) -> Result<usize>;

    /// Copies what is there into `dst`; 0 at the end of the stream, `EAGAIN` when it goes on but
    /// nothing is there. With `peek` the bytes stay.
    fn try_read(&self, dst: &mut Iov<'_>, peek: bool) -> Result<usize>;

    /// What the connection is ready for now.
    fn readiness(&self) -> Readiness;

    /// Registers the caller to be woken, and the descriptors to sleep on, in `set`. Looks again after
    /// registering and returns whether the connection is ready for `interest` already.
    fn arm(&'static self, interest: Interest, set: &mut WaitSet) -> bool;

    /// Undoes [`Endpoint::arm`].
    fn disarm(&self, interest: Interest, set: &WaitSet);

    /// Ends one or both directions (shutdown(2)).
    fn shutdown(&self, how: Shut);

    /// Ends the connection: unread input or `abort` resets it, else the peer reads the rest and then
    /// the end. The endpoint must not be used afterwards.
    fn close(&'static self, abort: bool);

    /// Bytes that can be read (FIONREAD).
    fn unread(&self) -> usize;

    /// Bytes the peer has not read yet (SIOCOUTQ).
    fn unsent(&self) -> usize;

    /// Takes the pending error (SO_ERROR).
    fn take_error(&self) -> i32;

    /// The CPU the peer last ran on, or [`netacc_sys::cpu::NO_CPU`]; a hint.
    fn peer_cpu(&self) -> u32;
}
