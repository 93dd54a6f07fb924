//! The interface between the socket layer and a transport: the trait [`Endpoint`].

use crate::iov::Iov;
use crate::wait::WaitSet;
use netacc_sys::errno::Result;

/// The events for which a connection is ready: `EPOLL*` bits (epoll_ctl(2)), whose values `POLL*` share for these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness(pub u32);

impl Readiness {
    /// Data, end of data or an error can be read.
    pub const IN: u32 = libc::EPOLLIN as u32 | libc::EPOLLRDNORM as u32;
    /// A write would not block.
    pub const OUT: u32 = libc::EPOLLOUT as u32 | libc::EPOLLWRNORM as u32;
    /// The peer has ended its stream.
    pub const RDHUP: u32 = libc::EPOLLRDHUP as u32;
    /// Both directions have ended.
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

/// The events that a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// Wait for data, the end of the stream or an error.
    pub read: bool,
    /// Wait for room to write.
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
/// Reads are serialised by the caller, and so are writes; everything else may be called by any thread at any time.
/// Errors and end-of-stream are reported exactly as a TCP socket reports them (tcp(7)): first the received bytes, then
/// a pending error once, then 0 or `EPIPE`.
pub trait Endpoint: Sync {
    /// Copies as many bytes of `src` as fit into the connection. `EAGAIN`: none fits.
    fn try_write(&self, src: &mut Iov<'_>) -> Result<usize>;

    /// Copies received bytes into `dst`. Returns 0 at the end of the stream, and `EAGAIN` if there are no bytes before
    /// it. With `peek` the bytes stay unread.
    fn try_read(&self, dst: &mut Iov<'_>, peek: bool) -> Result<usize>;

    /// The events for which the connection is ready now.
    fn readiness(&self) -> Readiness;

    /// Registers the caller to be woken, and the descriptors to sleep on, in `set`. Checks the connection after
    /// registering, and returns whether it is already ready for `interest`.
    fn arm(&'static self, interest: Interest, set: &mut WaitSet) -> bool;

    /// Undoes [`Endpoint::arm`].
    fn disarm(&self, interest: Interest, set: &WaitSet);

    /// Ends one or both directions (shutdown(2)).
    fn shutdown(&self, how: Shut);

    /// Closes the connection: unread input or `abort` resets it; otherwise the peer reads the remaining bytes and then
    /// the end. The endpoint must not be used afterwards.
    fn close(&'static self, abort: bool);

    /// Number of bytes that can be read (FIONREAD).
    fn unread(&self) -> usize;

    /// Number of bytes that the peer has not read yet (SIOCOUTQ).
    fn unsent(&self) -> usize;

    /// Returns and clears the pending error (SO_ERROR); 0: none.
    fn take_error(&self) -> i32;

    /// Hint for the wait policy: the CPU on which the peer last ran, or [`netacc_sys::cpu::NO_CPU`].
    fn peer_cpu(&self) -> u32;
}
