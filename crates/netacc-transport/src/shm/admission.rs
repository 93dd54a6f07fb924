//! The server's side of the rendezvous: a client is let in, its Hello brings the segment, and that becomes a link.

use crate::shm::control::{Received, receive_message};
use crate::shm::guard::{FirstMessage, brings_memfd, dismiss, first_message, refuse_descriptors};
use crate::shm::host_access;
use crate::shm::link::Link;
use crate::shm::mapping::Mapped;
use crate::shm::rendezvous::FLAGS;
use crate::shm::segment::{SEGMENT, Segment};
use crate::shm::server_state::ServerState;
use crate::shm::side::Side;
use crate::shm::users::{Trust, trusted};
use core::sync::atomic::Ordering;
use netacc_stats::{Counter, Reason, page};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{raw, reserved_fds};
use netacc_wire::Message;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::net::accept_with;

/// Result of an attempt to take up a link.
pub enum Taken {
    /// The link was made.
    Link(&'static Link),
    /// The client has not sent its Hello yet; this socket has to be tried again when it is readable.
    Later(OwnedFd),
    /// No descriptor is left for the one that the client's Hello passes; this socket has to be tried again later.
    Unable(OwnedFd),
    /// A client may wait, but no descriptor is left.
    Starved,
    /// The client was refused or gave up, or resources were missing; its socket is closed.
    Refused,
    /// No client waits.
    Nobody,
    /// Another sharer shut the rendezvous down for all.
    Shut,
}

/// Accepts the next client of a rendezvous socket. `room` tells whether there is room for a client of this user.
pub fn accept_link(listener: BorrowedFd<'_>, backlog: u32, room: impl Fn(u32) -> bool) -> Taken {
    let mut p = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    if raw::ppoll(&raw mut p, 1, &raw mut ts, core::ptr::null()) != Ok(1) {
        return Taken::Nobody;
    }
    // There have to be descriptors for the client's socket, for the one that it passes, and for the application's
    // accept(2): a client that was accepted without room for the others would only use up the last number.
    let spare = || rustix::io::fcntl_dupfd_cloexec(listener, 0);
    match (spare(), spare(), spare()) {
        (Ok(a), Ok(b), Ok(c)) => [a, b, c].map(reserved_fds::drop_raw),
        (a, b, c) => {
            [a, b, c].into_iter().flatten().for_each(reserved_fds::drop_raw);
            return Taken::Starved;
        }
    };
    loop {
        match accept_with(listener, FLAGS) {
            Ok(fd) => return receive_hello(fd, backlog, room),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
            // The rendezvous was shut down, so it no longer listens. Since it does not block, accept(2) says nothing of that,
            // while poll(2) does.
            Err(rustix::io::Errno::AGAIN) if p.revents & libc::POLLHUP != 0 => return Taken::Shut,
            Err(rustix::io::Errno::AGAIN) => return Taken::Nobody,
            // After EMFILE or a similar error the client stays in the queue, and is accepted later.
            Err(_) => return Taken::Starved,
        }
    }
}

/// Receives the Hello of an accepted client and makes the link. `room` tells whether there is room for a client of this
/// user.
pub fn receive_hello(fd: OwnedFd, backlog: u32, room: impl Fn(u32) -> bool) -> Taken {
    let Ok((seen, uid)) = raw::peer_credentials(fd.as_raw_fd()) else {
        dismiss(fd);
        return Taken::Refused;
    };
    if !room(uid) {
        page().fallback(Reason::NoDescriptors);
        dismiss(fd);
        return Taken::Refused;
    }
    // The Hello passes a descriptor, which would be lost without a free number for it.
    match rustix::io::fcntl_dupfd_cloexec(&fd, 0) {
        Ok(spare) => reserved_fds::drop_raw(spare),
        Err(_) => return Taken::Unable(fd),
    }
    let (pid, memfd) = match receive_memfd(fd.as_fd(), uid) {
        Ok(Some(hello)) => hello,
        Ok(None) => return Taken::Later(fd),
        Err(why) => {
            // The client uses TCP, and only this process knows the reason.
            if why == Some(Reason::ProtocolError) {
                page().count(Counter::ProtocolErrors);
            }
            if let Some(why) = why {
                page().fallback(why);
            }
            dismiss(fd);
            return Taken::Refused;
        }
    };
    let trust = host_access::trust_in_client(fd.as_fd(), uid);
    if !trust.is_given() {
        // Such a client may pass no descriptor but that of its Hello.
        refuse_descriptors(fd.as_fd());
    }
    let mapped = Segment::map(memfd.as_fd());
    reserved_fds::drop_raw(memfd);
    let mapped = match mapped {
        Ok(mapped) => mapped,
        Err(e) => {
            dismiss(fd);
            return refused(e);
        }
    };
    server_link(fd, mapped, (pid, seen, uid), trust, backlog)
        .inspect_err(|_| mapped.discard())
        .map_or_else(refused, Taken::Link)
}

/// Receives the process id that a client of the user `uid` claims, and its segment. `None`: they have not come yet. An error
/// without a reason: the client has gone.
fn receive_memfd(fd: BorrowedFd<'_>, uid: u32) -> core::result::Result<Option<(u32, OwnedFd)>, Option<Reason>> {
    let may_pass = |sender: Option<u32>| trusted(uid) && sender.is_none_or(trusted);
    match first_message(fd.as_raw_fd()) {
        FirstMessage::Nothing => return Ok(None),
        // A descriptor of a sender that is not our user, nor root, is looked at first.
        FirstMessage::Message { uid: sender, descriptors: true }
            if !may_pass(sender) && !brings_memfd(fd.as_raw_fd()) =>
        {
            return Err(Some(Reason::ProtocolError));
        }
        FirstMessage::Message { .. } | FirstMessage::End => {}
    }
    match receive_message(fd) {
        Received::Nothing => Ok(None),
        Received::Message(Message::Hello { pid, segment }, Some(memfd)) if segment == SEGMENT as u64 => {
            Ok(Some((pid, memfd)))
        }
        Received::Version => Err(Some(Reason::PeerVersion)),
        Received::Message(..) | Received::Garbage => Err(Some(Reason::ProtocolError)),
        Received::End => Err(None),
    }
}

/// Counts the reason why a client's link cannot be taken up. The client sees the end of its control socket, and uses
/// TCP.
fn refused(e: Errno) -> Taken {
    page().fallback(match e {
        Errno::PROTO => Reason::ProtocolError,
        Errno::MFILE | Errno::NFILE => Reason::NoDescriptors,
        _ => Reason::NoMemory,
    });
    Taken::Refused
}

/// Makes the server's side of a link whose segment is mapped. `pid` is the process id according to the client; `seen`
/// and `uid` are the kernel's values.
fn server_link(
    fd: OwnedFd,
    mapped: Mapped,
    (pid, seen, uid): (u32, u32, u32),
    trust: Trust,
    backlog: u32,
) -> Result<&'static Link> {
    let seg = mapped.seg;
    seg.set_backlog(backlog);
    // Our process id is valid at the client if both agree on the client's; otherwise the client is in another PID
    // namespace.
    let ours = if seen == pid { raw::getpid() } else { 0 };
    seg.header().server_pid.store(ours, Ordering::Relaxed);
    let control = reserved_fds::adopt(fd)?;
    let link = Link::new(Side::Server, mapped, control, trust, seen)?;
    link.peer.set_uid(uid);
    seg.set_server(ServerState::Open);
    Ok(link)
}
