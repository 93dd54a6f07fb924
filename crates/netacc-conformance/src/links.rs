//! Two links in one process, over one segment that is mapped twice as in two processes.
#![allow(unsafe_code)]

use crate::ends::{End, Pair, Rig};
use crate::relay::{Delays, Relay};
use netacc_sys::reserved_fds;
use netacc_transport::shm::segment::Segment;
use netacc_transport::shm::users::Trust;
use netacc_transport::shm::{Link, ShmEndpoint, Side};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::sync::atomic::Ordering;

/// `a` is the client's end.
pub struct Client;
/// `a` is the server's end.
pub struct Server;
/// The two do not trust each other.
pub struct Strangers;

/// As [`Client`], but messages and wake-ups come up to 3 ms late.
pub struct Late;
/// As [`Strangers`], but messages, by which such sides wake each other, come up to 3 ms late.
pub struct LateStrangers;

/// The delays of [`Late`] and [`LateStrangers`].
const LATE: Delays = Delays { message: 3_000_000, wake: 3_000_000 };

impl Rig for Late {
    const PART: usize = 8;

    fn pair() -> Pair {
        late_pair("late", true)
    }
}

impl Rig for LateStrangers {
    const PART: usize = 8;

    fn pair() -> Pair {
        late_pair("late strangers", false)
    }
}

fn late_pair(name: &str, trusted: bool) -> Pair {
    let (c, s, relay) = Relay::between(name, LATE);
    let links = Links::over(c, s, trusted);
    let (client, server) = links.connect().unwrap();
    let server_link = links.server;
    Pair {
        a: End::new(client),
        b: End::new(server),
        kill_b: Box::new(move || server_link.close_descriptors()),
        _keep: Box::new((links, relay)),
    }
}

impl Rig for Client {
    fn pair() -> Pair {
        pair(true, Side::Client)
    }
}

impl Rig for Server {
    fn pair() -> Pair {
        pair(true, Side::Server)
    }
}

impl Rig for Strangers {
    fn pair() -> Pair {
        pair(false, Side::Client)
    }
}

fn pair(trusted: bool, a: Side) -> Pair {
    let links = Links::new(trusted);
    let (c, s) = links.connect().unwrap();
    let (a, b, b_link) = match a {
        Side::Client => (c, s, links.server),
        Side::Server => (s, c, links.client),
    };
    Pair {
        a: End::new(a),
        b: End::new(b),
        // What the kernel does for a process that is killed.
        kill_b: Box::new(move || b_link.close_descriptors()),
        _keep: Box::new(links),
    }
}

/// Both sides of a link, over one segment that is mapped twice as in two processes.
pub struct Links {
    /// The side that opens connections.
    pub client: &'static Link,
    /// The side that accepts them.
    pub server: &'static Link,
}

/// A pair of control sockets.
pub fn control_sockets() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

impl Links {
    /// Two new links, which trust each other or not.
    pub fn new(trusted: bool) -> Links {
        let (c, s) = control_sockets();
        Links::over(c, s, trusted)
    }

    /// Two links whose control sockets are these: messages from one may have a way to the other.
    pub fn over(c: OwnedFd, s: OwnedFd, trusted: bool) -> Links {
        let memfd = Segment::create().unwrap();
        let trust = if trusted { Trust::User } else { Trust::No };
        let link = |side, socket| {
            let seg = Segment::map(memfd.as_fd()).unwrap();
            Link::new(side, seg, reserved_fds::adopt(socket).unwrap(), trust, 0).unwrap()
        };
        Links { client: link(Side::Client, c), server: link(Side::Server, s) }
    }

    /// A connection, as connect(2) and accept(2) make it.
    pub fn connect(&self) -> Option<(&'static ShmEndpoint, &'static ShmEndpoint)> {
        let seg = self.client.segment().unwrap();
        let claimed = self.client.claim()?;
        let (c, s) = (self.client.endpoint(claimed.slot).unwrap(), self.server.endpoint(claimed.slot).unwrap());
        assert!(c.begin(claimed.generation));
        assert!(s.side.take(), "the connect was withdrawn");
        assert!(s.begin(seg.slot(claimed.slot).unwrap().open.generation.load(Ordering::Relaxed)));
        Some((c, s))
    }

    /// A control socket, to say things on it that no link says.
    pub fn control(link: &Link) -> BorrowedFd<'_> {
        // SAFETY: open as long as the link is held.
        unsafe { BorrowedFd::borrow_raw(link.control.fd()) }
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.client.put();
        self.server.put();
    }
}

/// A pipe whose writing end is given away: true once nobody has it any more.
pub fn pipe() -> (OwnedFd, impl FnOnce() -> bool) {
    let (r, w) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK).unwrap();
    (w, move || rustix::io::read(&r, &mut [0u8; 1]) == Ok(0))
}
