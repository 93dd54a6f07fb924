//! What comes over the control socket of a link: messages and descriptors.

use crate::limits::{CONTROL_TRIES, MESSAGES_PER_CALL, STRANGER_MESSAGES_PER_CALL};
use crate::shm::Link;
pub use crate::shm::control_socket::send_message;
use crate::shm::guard::{FirstMessage, first_message};
use crate::shm::heir_waker;
use crate::shm::link::{ENDED, LOST};
use crate::shm::promote::{Neighbour, Offer};
use crate::shm::redial;
use crate::shm::strangers::take_passed_socket;
use crate::shm::wait_budget::WaitBudget;
use crate::shm::wake::poke;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;
use netacc_ring::turn::in_turn;
use netacc_stats::{Counter, Reason, page};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{own_limit, raw, reserved_fds, time};
use netacc_wire::{LEN, Message};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::IoSliceMut;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};

/// Result of a receive from a control socket.
pub enum Received {
    /// A message, perhaps with a descriptor.
    Message(Message, Option<OwnedFd>),
    /// No message waits.
    Nothing,
    /// The peer has closed its end or has ended.
    End,
    /// A message that no correct peer sends.
    Garbage,
    /// A message of another version of the protocol.
    Version,
}

/// How far a control socket was read.
pub(super) enum Read {
    /// No message waits any more.
    All,
    /// Further messages may wait.
    Part,
    /// Nothing more is read from this peer, because of this result.
    Last(Received),
}

/// Receives one message without waiting. Descriptors are received close-on-exec; surplus ones are closed.
pub fn receive_message(fd: BorrowedFd<'_>) -> Received {
    receive(fd, RecvFlags::empty()).0
}

/// Receives a message that passes a descriptor, for which a spare number is given back if the program has used up all
/// others. `None`: it waits for a number, and stays in the socket.
///
/// Only a liveness socket is worth the wait: without it the end of the peer's last sharer would never be seen. The
/// message stays as long as the peer has its end of the control socket.
fn receive_passed(fd: BorrowedFd<'_>) -> Option<Received> {
    let raw_fd = fd.as_raw_fd();
    let (mut peeked, mut lost) = receive(fd, RecvFlags::PEEK);
    // A waker is not worth a spare number: the peer is woken by messages or bytes instead.
    let is_waker = matches!(peeked, Received::Message(Message::Waker { .. } | Message::HeirWaker { .. }, None));
    if lost && !is_waker && reserved_fds::is_exhausted(raw_fd) {
        // Above the program's limit there may be numbers, which serve as well.
        if let Some(again) = own_limit::while_raised(|| receive(fd, RecvFlags::PEEK)) {
            (peeked, lost) = again;
        }
        if lost && reserved_fds::make_room(raw_fd) {
            (peeked, lost) = receive(fd, RecvFlags::PEEK);
        }
        let waits = matches!(peeked, Received::Message(Message::Liveness { .. }, None)) && !has_hung_up(raw_fd);
        if lost && waits && reserved_fds::is_exhausted(raw_fd) {
            return None;
        }
    }
    if !matches!(peeked, Received::Nothing | Received::End) {
        // The peek has made a duplicate of the descriptor, so the message can go.
        let mut byte = 0u8;
        while matches!(raw::recv(raw_fd, &raw mut byte, 1, libc::MSG_DONTWAIT), Err(Errno::INTR | Errno::CONNRESET)) {}
    }
    Some(peeked)
}

/// Whether the peer has closed its end, so that no further message comes.
fn has_hung_up(fd: i32) -> bool {
    raw::events_now(fd, 0) & libc::POLLHUP != 0
}

/// Receives one message, or looks at it. True: it passes a descriptor that found no number.
fn receive(fd: BorrowedFd<'_>, how: RecvFlags) -> (Received, bool) {
    let mut bytes = [0u8; LEN + 1];
    // If the sender's credentials were requested, the kernel puts them first.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1), ScmRights(1))];
    let mut anc = RecvAncillaryBuffer::new(&mut space);
    let how = how | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = loop {
        match recvmsg(fd, &mut [IoSliceMut::new(&mut bytes)], &mut anc, how) {
            Ok(r) => break r,
            // If a peer has ended without reading everything, the kernel reports that once, before it returns the
            // messages that the peer sent: they may pass descriptors of connections that go on.
            Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNRESET) => {}
            Err(rustix::io::Errno::AGAIN) => return (Received::Nothing, false),
            Err(_) => return (Received::End, false),
        }
    };
    let mut first = None;
    for m in anc.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = m {
            for fd in fds {
                match first {
                    None => first = Some(fd),
                    Some(_) => reserved_fds::drop_raw(fd),
                }
            }
        }
    }
    if got.bytes == 0 {
        if let Some(fd) = first {
            reserved_fds::drop_raw(fd);
        }
        return (Received::End, false);
    }
    // MSG_CTRUNC: a descriptor was lost (RLIMIT_NOFILE); the message without it is still whole.
    let whole = !got.flags.contains(ReturnFlags::TRUNC);
    let lost = got.flags.contains(ReturnFlags::CTRUNC) && first.is_none();
    let received = match bytes.get(..got.bytes).filter(|_| whole).and_then(Message::decode) {
        Some(m) => Received::Message(m, first),
        None => {
            if let Some(fd) = first {
                reserved_fds::drop_raw(fd);
            }
            if whole && bytes.get(..got.bytes).is_some_and(netacc_wire::is_other_version) {
                Received::Version
            } else {
                Received::Garbage
            }
        }
    };
    (received, lost)
}

/// Repeats `what` while it returns `EAGAIN`, for up to 200 ms.
pub(super) fn patiently(mut what: impl FnMut() -> Result<()>) -> Result<()> {
    for _ in 0..CONTROL_TRIES {
        match what() {
            Err(Errno::AGAIN) => {}
            r => return r,
        }
        let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        let _ = raw::ppoll(core::ptr::null_mut(), 0, &raw mut ts, core::ptr::null());
    }
    Err(Errno::AGAIN)
}

/// Whether a message was refused for a reason that passes: the socket is full, or too many descriptors of this user are
/// in sockets that were not read (`ETOOMANYREFS`, unix(7)).
fn is_full(sent: Result<()>) -> bool {
    matches!(sent, Err(Errno::AGAIN | TOOMANYREFS))
}

const TOOMANYREFS: Errno = Errno(libc::ETOOMANYREFS);

impl Link {
    /// Sends a message, and waits briefly for a peer whose socket is full. Liveness sockets are not waited for again
    /// until [`timeouts::UNRESPONSIVE_PEER`] has passed, so that a fork, which sends one per connection, waits for an
    /// unresponsive peer only once.
    pub(crate) fn send_patiently(&'static self, m: Message, pass: Option<i32>, budget: &WaitBudget) -> Result<()> {
        let mut sent = self.control.send(m, pass);
        if sent == Err(Errno::AGAIN) && self.control.widen() {
            sent = self.control.send(m, pass);
        }
        if !is_full(sent) {
            return sent;
        }
        let deaf = matches!(m, Message::Liveness { .. }) && self.control.is_deaf();
        budget.wait(self.peer.is_trusted(), |until| {
            while is_full(sent) && !deaf && time::now() < until {
                // The peer may be waiting for us to read its messages.
                self.service();
                // What other sockets hold of this user's descriptors ends without an event here.
                let events = if sent == Err(Errno::AGAIN) { libc::POLLOUT } else { 0 };
                let mut p = libc::pollfd { fd: self.control.fd(), events, revents: 0 };
                let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
                let _ = raw::ppoll(&raw mut p, 1, &raw mut ts, core::ptr::null());
                sent = self.control.send(m, pass);
            }
            sent.is_ok()
        });
        if is_full(sent) && !deaf {
            self.control.becomes_deaf();
        }
        sent
    }

    /// Processes all messages that wait in the control socket.
    pub fn service(&'static self) {
        // There is one reader at a time, so that messages are processed in order. A thread that finds the socket busy
        // need not wait.
        let read = in_turn(
            &self.control.more,
            || self.control.reader.try_lock(),
            || Some(self.read_all()).filter(|read| !matches!(read, Read::All)),
        );
        match read {
            None | Some(Read::All) => {}
            Some(Read::Part) => {
                // The kernel has told each epoll instance of the messages (`EPOLLET`) and does not repeat that. So
                // the instances' wakers are written, and a thread that finds the mark reads on.
                self.control.more.store(1, Ordering::SeqCst);
                self.wakers().ring_all();
            }
            Some(Read::Last(Received::End)) => self.lose(),
            Some(Read::Last(_)) => self.expel(),
        }
    }

    /// Reads the waiting messages, under the reader's lock.
    pub(super) fn read_all(&'static self) -> Read {
        // The number is limited, so that a peer that floods the socket does not keep our thread.
        let most = if self.peer.is_trusted() { MESSAGES_PER_CALL } else { STRANGER_MESSAGES_PER_CALL };
        for _ in 0..most {
            let Some(control) = self.control.borrowed() else { return Read::All };
            let passes = match first_message(control.as_raw_fd()) {
                FirstMessage::Message { uid, descriptors } => {
                    // Trust depends on the user of the last message's sender from now on: a server that listened as
                    // root may have become another user.
                    if self.peer.is_trusted() && !self.peer.may_pass(uid) {
                        self.endpoints().for_each(take_passed_socket);
                        self.distrust();
                    }
                    if descriptors && !self.peer.may_pass(uid) {
                        self.reset_all();
                        return Read::Last(Received::Garbage);
                    }
                    descriptors
                }
                FirstMessage::Nothing => {
                    self.answer_kick();
                    return Read::All;
                }
                FirstMessage::End => return Read::Last(Received::End),
            };
            let received = if passes { receive_passed(control) } else { Some(receive_message(control)) };
            self.control.set_stalled(received.is_none());
            match received.unwrap_or(Received::Nothing) {
                Received::Nothing => {
                    self.answer_kick();
                    return Read::All;
                }
                Received::Message(m, fd) if self.refuses(&m) => {
                    if let Some(fd) = fd {
                        reserved_fds::drop_raw(fd);
                    }
                    return Read::Last(Received::Garbage);
                }
                Received::Message(m, fd) => self.handle(m, fd),
                end => return Read::Last(end),
            }
        }
        Read::Part
    }

    /// Processes waiting messages, at the cost of one system call if there are none.
    pub fn service_if_readable(&'static self) {
        let mut byte = 0u8;
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        if raw::recv(self.control.fd(), &raw mut byte, 1, flags) != Err(Errno::AGAIN) {
            self.service();
        }
    }

    /// Marks the link as ended when the peer has ended: endpoints report what TCP would report, and all sleeping
    /// threads check again.
    pub fn lose(&'static self) {
        let lost = self.has_open_streams();
        self.end(if lost { LOST } else { ENDED });
    }

    /// Ends the link of a peer that violated the protocol, as if the peer had died.
    pub fn expel(&'static self) {
        page().count(Counter::ProtocolErrors);
        page().fallback(Reason::ProtocolError);
        self.end(LOST);
    }

    fn end(&'static self, how: u32) {
        if self.lost.compare_exchange(0, how, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return;
        }
        if how == LOST {
            page().count(Counter::LinksLost);
        }
        crate::shm::promote::forget(self);
        // What the threads are to see is marked first. All wakers ring then, once.
        for ep in self.endpoints() {
            poke(ep, |_, _| {});
        }
        self.wakers().ring_all();
    }

    /// Whether the peer has a connection whose stream it has not ended. A peer that exits normally has none.
    fn has_open_streams(&'static self) -> bool {
        let other = self.side().other().index();
        self.segment().is_some_and(|seg| {
            self.endpoints().filter(|ep| ep.side.is_live()).any(|ep| {
                let fin = seg
                    .slot(ep.side.slot_index())
                    .and_then(|s| s.own.get(other))
                    .map(|o| o.producer.fin.load(Ordering::Acquire));
                fin.is_some_and(netacc_ring::has_not_ended)
            })
        })
    }

    fn answer_kick(&self) {
        if let Some(k) = self.segment().and_then(|s| s.header().kick_all.get(self.side().index()))
            && k.load(Ordering::SeqCst) != 0
            && k.swap(0, Ordering::SeqCst) != 0
        {
            self.wakers().ring_all();
        }
    }

    fn handle(&'static self, m: Message, fd: Option<OwnedFd>) {
        match (m, fd) {
            (Message::Waker { id, token }, None) if token != 0 => self.wakers().learn_token(id, token),
            (Message::Waker { id, token: 0 }, Some(fd)) => {
                if let Ok(fd) = reserved_fds::adopt(fd) {
                    self.wakers().learn(id, fd);
                }
            }
            (Message::Wake { id }, None) => self.wakers().ring(id),
            (Message::Promote { slot, generation }, None) => {
                crate::shm::promote::queue(self, Offer { slot, generation, neighbour: None });
            }
            (Message::PromoteNeighbour { slot, generation, stamp }, None) => {
                let neighbour = Some(Neighbour { stamp, fd: -1, confirmed: false });
                crate::shm::promote::queue(self, Offer { slot, generation, neighbour });
            }
            (Message::ConfirmNeighbour { slot, generation }, None) => {
                crate::shm::promote::confirm(self, slot, generation);
            }
            (Message::Liveness { slot, generation, token }, None) if token != 0 => {
                if let Some(ep) = self.endpoint(slot as usize) {
                    ep.learn_token(generation, token);
                }
            }
            (Message::Liveness { slot, generation, token: 0 }, Some(fd)) => {
                if let Some(ep) = self.endpoint(slot as usize) {
                    ep.learn_liveness(generation, fd);
                } else {
                    reserved_fds::drop_raw(fd);
                }
            }
            (Message::Liveness { slot, generation, token: 0 }, None) => {
                if let Some(ep) = self.endpoint(slot as usize) {
                    redial::miss_liveness(ep, generation);
                }
            }
            (Message::HeirWaker { slot, generation }, Some(fd)) => match self.endpoint(slot as usize) {
                Some(ep) => heir_waker::learn(ep, generation, fd),
                None => reserved_fds::drop_raw(fd),
            },
            (Message::OldSubflow { slot, generation }, Some(fd)) => match self.endpoint(slot as usize) {
                Some(ep) => ep.learn_unread_return(generation, fd),
                None => reserved_fds::drop_raw(fd),
            },
            (Message::SwitchToKernel { slot, generation }, Some(fd)) => match self.endpoint(slot as usize) {
                Some(ep) => ep.learn_switch(generation, fd),
                None => reserved_fds::drop_raw(fd),
            },
            (_, Some(fd)) => reserved_fds::drop_raw(fd),
            (Message::OldSubflow { slot, generation } | Message::SwitchToKernel { slot, generation }, None) => {
                if let Some(ep) = self.endpoint(slot as usize) {
                    ep.miss(generation);
                }
            }
            // Such a message means nothing here, or its descriptor was lost. A peer whose waker was lost is woken by
            // messages.
            (_, None) => {}
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::shm::Side;
    use crate::shm::segment::Segment;
    use crate::wait::WakerSource;
    use rustix::fd::AsFd;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    #[test]
    fn what_a_peer_said_before_it_died_with_unread_messages_arrives() {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        for slot in [1, 2] {
            send_message(theirs.as_fd(), Message::SwitchToKernel { slot, generation: 1 }, Some(ours.as_fd())).unwrap();
        }
        send_message(ours.as_fd(), Message::Wake { id: 1 }, None).unwrap();
        let _alone = crate::starting();
        drop(theirs);
        for expected in [1, 2] {
            let got = receive_message(ours.as_fd());
            assert!(
                matches!(got, Received::Message(Message::SwitchToKernel { slot, .. }, Some(_)) if slot == expected)
            );
        }
        assert!(matches!(receive_message(ours.as_fd()), Received::End));
    }

    #[test]
    fn the_rest_of_a_flood_is_announced_to_our_own_threads() {
        const SO_SNDBUFFORCE: i32 = 32;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        for option in [libc::SO_SNDBUF, SO_SNDBUFFORCE] {
            let _ = raw::setsockopt_int(theirs.as_raw_fd(), libc::SOL_SOCKET, option, 64 << 20);
        }
        let segment = Segment::map(Segment::create().unwrap().as_fd()).unwrap();
        let link =
            Link::new(Side::Server, segment, reserved_fds::adopt(ours).unwrap(), crate::shm::users::Trust::User, 0)
                .unwrap();
        let waker = link.borrow_waker().unwrap();
        let is_rung = || {
            let mut count = 0u64;
            raw::read(link.waker_fd(waker), (&raw mut count).cast(), 8, None).is_ok()
        };
        let sent = (0..=MESSAGES_PER_CALL).take_while(|_| {
            // This waker does not exist, so the messages have no effect.
            send_message(theirs.as_fd(), Message::Wake { id: u32::MAX }, None).is_ok()
        });
        if sent.count() <= MESSAGES_PER_CALL {
            // The kernel's limit (net.core.wmem_max) allows no such flood.
            return link.put();
        }
        link.service();
        assert!(link.control.has_more_to_read() && is_rung());
        link.service();
        assert!(!link.control.has_more_to_read() && !is_rung());
        link.put();
    }
}
