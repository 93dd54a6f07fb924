//! A process that relays between a ring and a kernel socket, for a connection that has to be a kernel socket now and
//! whose peer belongs to another user, to which no socket can be passed, or that has more unread bytes than a socket takes.
//!
//! The program gets one end of a new pair of sockets under its numbers. The relay is a copy of this process that shares
//! the connection as the child of a fork does, and moves bytes between the ring and the other end of the pair. To the
//! peer this looks like a fork: this process closes the connection, and another sharer has it.
//!
//! An end of stream or a reset on one of the two is passed on to the other. The relay ends with the connection. It is
//! not a child that the program could wait for, has all signals blocked, and keeps no descriptor and as little memory
//! of the program as it can.
//!
//! If the connection was shared before, other sharers stay at the ring. A program that closes its socket then leaves
//! the connection to them, and the peer must see no end.

use crate::fork::descendants::Heir;
use crate::fork::{descendants, namespace};
use crate::limits::RELAY_END_CHECKS;
use crate::object::socket::{SHARED, Socket};
use crate::switch::pair;
use crate::switch::shed::shed;
use crate::timeouts;
use core::sync::atomic::AtomicU32;
use netacc_sys::errno::{Answer, Errno, Result};
use netacc_sys::mem::Owned;
use netacc_sys::time::Deadline;
use netacc_sys::{addr, cancel, cpu, lock, raw, reserved_fds, time};
use netacc_transport::shm::unread::Unread;
use netacc_transport::shm::{ShmEndpoint, Side, WaitBudget, owner, reset_at_close};
use netacc_transport::{Endpoint, Interest, Iov, Shut, WaitSet};
use rustix::fd::{AsRawFd, OwnedFd};

const RELAY_LINK_HANDOVER: u64 = time::ns(timeouts::RELAY_LINK_HANDOVER);
/// Largest number of bytes of a direction that the relay holds.
const BUFFER: usize = 64 * 1024;

/// Whether other processes have the connection beside the relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    /// No other process has the connection, so it ends with the relay.
    None,
    /// Another sharer may be at the ring.
    Perhaps,
}

/// Starts a relay between the connection's ring and `peer_end`, whose other end the program gets. The caller holds both
/// direction locks and releases the endpoint afterwards.
pub fn start(s: &Socket, ep: &'static ShmEndpoint, peer_end: OwnedFd) -> Result<()> {
    let done = share(s, ep).and_then(|others| fork_relay(ep, peer_end.as_raw_fd(), others));
    pair::discard(peer_end);
    // The caller repeats a switch after EAGAIN, and this one would fail again.
    done.map_err(|e| if e == Errno::AGAIN { Errno::NOMEM } else { e })
}

/// Prepares the connection for one more process, as before a fork, and returns whether other processes have it.
fn share(s: &Socket, ep: &'static ShmEndpoint) -> Result<Others> {
    if namespace::splits_sharers() {
        // The relay would be the first process of the new PID namespace, which ends with its first process.
        return Err(Errno::OPNOTSUPP);
    }
    let alone = ep.liveness.fd() < 0 || (!ep.side.link().is_inherited() && descendants::alone());
    s.set(SHARED, true);
    // The relay takes the place of this process and does not count itself out: the others never take themselves for the
    // only ones.
    s.holders.forget();
    let timeout = WaitBudget::of_a_fork();
    if let Some(liveness) = ep.share(&timeout)? {
        ep.set_liveness(reserved_fds::adopt(liveness)?);
    }
    ep.before_fork(&timeout);
    Ok(if alone { Others::None } else { Others::Perhaps })
}

fn fork_relay(ep: &'static ShmEndpoint, peer_end: i32, others: Others) -> Result<()> {
    let link = ep.side.link();
    let heir = Heir::begin(link.side() == Side::Client && !link.is_inherited())?;
    // The first call uses the dynamic linker, which the relay cannot do.
    let _ = cpu::current();
    ep.side.relay_begins();
    // The kernel copies the descriptor table before the memory: the relay's copy of memory could name a descriptor that
    // another thread received in between, and that the relay does not have.
    let mut unread = Unread::default();
    if !link.is_inherited() {
        unread.stop(link, RELAY_LINK_HANDOVER);
    }
    let done = raw::detached(|| live(ep, peer_end, others, &heir));
    heir.end(done.is_ok());
    if done.is_err() {
        ep.side.relay_ends();
    }
    unread.go_on();
    done
}

/// Runs the relay from its first instruction to its end. A thread of the copied process may have been in the middle of
/// an allocation, so nothing here allocates.
fn live(ep: &'static ShmEndpoint, peer_end: i32, others: Others, heir: &Heir) {
    raw::set_name(b"netacc-relay\0\0\0\0");
    lock::begin_process();
    cancel::forget();
    let link = ep.side.link();
    link.inherit();
    link.close_descriptors();
    netacc_transport::shm::after_fork();
    ep.forget_sleepers();
    ep.forget_missing();
    close_all_but(ep, peer_end, heir);
    // The copied stats page belongs to the program, so the relay gets its own.
    if let Ok(page) = netacc_stats::reinit_after_fork(raw::getpid(), []) {
        reserved_fds::drop_raw(page);
    }
    // The peer's bytes have been delayed once already, so they are not delayed by Nagle's algorithm. The option fails
    // on a UNIX socket, which does no harm.
    let _ = raw::setsockopt_int(peer_end, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    // A file system could not be unmounted while the relay's current directory is on it.
    let _ = rustix::process::chdir(c"/");
    ep.set_lowat(1);
    // The relay has no kernel socket to give, and need not wake to look.
    ep.standstill.give_up();
    ep.side.become_relay();
    shed_memory(ep);
    match Relay::new(ep, peer_end, others) {
        Ok(relay) => relay.run(),
        Err(_) => reset_at_close(peer_end),
    }
}

/// Unmaps all of the program's memory except what the relay uses: its stack, libc's thread block, the objects of the
/// connection, the segment, the stats page, and the data of this library.
fn shed_memory(ep: &'static ShmEndpoint) {
    // This variable lies in the same mapping as all other variables of the library.
    static DATA: AtomicU32 = AtomicU32::new(0);
    let (stack, [own, table]) = (0u8, cpu::thread_memory());
    let page = core::ptr::from_ref(netacc_stats::page()).addr();
    let segment = ep.side.link().segment().map_or(0, |seg| seg.as_ptr().addr());
    let (ours, link) = (core::ptr::from_ref(ep).addr(), core::ptr::from_ref(ep.side.link()).addr());
    shed(&[(&raw const stack).addr(), (&raw const DATA).addr(), own, table, page, segment, ours, link]);
}

fn close_all_but(ep: &ShmEndpoint, peer_end: i32, heir: &Heir) {
    let mut kept = [-1; 32];
    let all = ep.descriptors().into_iter().chain([peer_end]).chain(heir.held);
    for (place, fd) in kept.iter_mut().zip(all.filter(|fd| *fd >= 0)) {
        *place = fd;
    }
    kept.sort_unstable();
    let mut from = 0u32;
    for fd in kept.into_iter().filter(|fd| *fd >= 0).map(|fd| fd as u32).chain([reserved_fds::MAX_FDS as u32]) {
        if from < fd && raw::close_range(from, fd - 1, 0).is_err() {
            // This is for kernels before Linux 5.9, which have no close_range(2).
            for fd in from..fd {
                let _ = raw::close(fd as i32);
            }
        }
        from = fd + 1;
    }
}

/// The bytes of one direction that the relay holds.
#[derive(Default)]
struct Lane {
    buf: Owned,
    at: usize,
    len: usize,
    /// Set once the source has ended its stream.
    ended: bool,
    /// Set once the end of stream was passed on after all bytes.
    done: bool,
}

impl Lane {
    fn new() -> Result<Lane> {
        Ok(Lane { buf: Owned::new(BUFFER)?, ..Lane::default() })
    }

    fn is_empty(&self) -> bool {
        self.at == self.len
    }

    /// Whether the direction has room for further bytes of the source.
    fn wants(&self) -> bool {
        self.is_empty() && !self.ended
    }

    /// Fills an empty buffer by `read`. Returns whether there were bytes or the end of the stream.
    fn fill(&mut self, read: impl FnOnce(&mut [u8]) -> Result<usize>) -> Result<bool> {
        if !self.wants() {
            return Ok(false);
        }
        match read(&mut self.buf) {
            Ok(n) => {
                (self.at, self.len, self.ended) = (0, n, n == 0);
                Ok(true)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Passes the buffered bytes to `write`. Returns whether it accepted any.
    fn empty(&mut self, write: impl FnOnce(&[u8]) -> Result<usize>) -> Result<bool> {
        let left = self.buf.get(self.at..self.len).unwrap_or_default();
        if left.is_empty() {
            return Ok(false);
        }
        match write(left) {
            Ok(n) => {
                self.at += n;
                Ok(n > 0)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(e) => Err(e),
        }
    }
}

/// Reason for the end of a relayed connection, other than the end of both streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The program's socket was reset, or failed in another way.
    Socket,
    /// Every process has closed the program's socket.
    Closed,
    /// The ring's connection was reset.
    Ring,
}

struct Relay {
    ep: &'static ShmEndpoint,
    peer_end: i32,
    others: Others,
    /// From the program to the peer.
    up: Lane,
    /// From the peer to the program.
    down: Lane,
}

impl Relay {
    fn new(ep: &'static ShmEndpoint, peer_end: i32, others: Others) -> Result<Relay> {
        Ok(Relay { ep, peer_end, others, up: Lane::new()?, down: Lane::new()? })
    }

    fn run(mut self) {
        let mut steps = 0;
        let end = loop {
            match self.step() {
                Ok(true) => steps = 0,
                Ok(false) if self.up.done && self.down.done => break None,
                Ok(false) => match self.sleep(steps) {
                    Ok(true) => steps = 0,
                    Ok(false) => steps += 1,
                    Err(end) => break Some(end),
                },
                Err(end) => break Some(end),
            }
        };
        self.finish(end);
    }

    /// Moves the bytes that can be moved without waiting. Returns whether there were any.
    fn step(&mut self) -> core::result::Result<bool, End> {
        Ok(self.step_up()? | self.step_down()?)
    }

    fn step_up(&mut self) -> core::result::Result<bool, End> {
        let (ep, remote) = (self.ep, self.peer_end);
        let filled = self.up.fill(|b| raw::recv(remote, b.as_mut_ptr(), b.len(), libc::MSG_DONTWAIT));
        let filled = filled.map_err(|_| End::Socket)?;
        let given = self.up.empty(|b| {
            let piece = libc::iovec { iov_base: b.as_ptr().cast_mut().cast(), iov_len: b.len() };
            ep.try_write(&mut Iov::one(&piece))
        });
        let given = given.map_err(|_| End::Ring)?;
        if self.up.ended && !self.up.done {
            self.up.done = true;
            if !self.is_held_still() {
                return Err(End::Closed);
            }
            ep.shutdown(Shut::Write);
        }
        Ok(filled | given)
    }

    fn step_down(&mut self) -> core::result::Result<bool, End> {
        let (ep, remote) = (self.ep, self.peer_end);
        let filled = self.down.fill(|b| {
            let piece = libc::iovec { iov_base: b.as_mut_ptr().cast(), iov_len: b.len() };
            ep.try_read(&mut Iov::one(&piece), false)
        });
        let filled = filled.map_err(|_| End::Ring)?;
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let given = self.down.empty(|b| raw::send(remote, b.as_ptr(), b.len(), flags)).map_err(|_| End::Socket)?;
        if self.down.ended && !self.down.done {
            self.down.done = true;
            let _ = raw::shutdown(remote, libc::SHUT_WR);
        }
        Ok(filled | given)
    }

    /// Sleeps until bytes or room may have come; false if the sleep timed out.
    fn sleep(&mut self, steps: u32) -> core::result::Result<bool, End> {
        if self.ep.must_switch() {
            // The server has ended before it accepted the connect, which only the client's own process could make
            // again.
            return Err(End::Ring);
        }
        let deadline = if self.up.done { Deadline::within(timeouts::RELAY_CLOSE_CHECK) } else { Deadline::Never };
        let mut set = WaitSet::new();
        set.steps = steps;
        let reads = if self.up.wants() { libc::POLLIN } else { 0 };
        let at = set.add(self.peer_end, reads | if self.down.is_empty() { 0 } else { libc::POLLOUT });
        let slept = self.sleep_in(&mut set, deadline);
        if self.up.done {
            // The kernel reports these events even if they are not requested, at each poll; both mean that the socket
            // accepts no more bytes.
            if set.revents(at) & (libc::POLLHUP | libc::POLLERR) != 0 {
                return Err(End::Socket);
            }
            if slept == Ok(0) && !self.is_held() {
                return Err(End::Closed);
            }
        }
        Ok(slept.is_ok_and(|n| n > 0))
    }

    fn sleep_in(&self, set: &mut WaitSet, deadline: Deadline) -> Answer<usize> {
        if self.ep.side.peer_is_gone() {
            // With the peer gone, reads and writes of the ring never wait, so only the socket is waited for.
            return set.sleep(deadline, core::ptr::null());
        }
        let interest = Interest { read: self.down.wants(), write: !self.up.is_empty() };
        let ready = self.ep.arm(interest, set);
        let slept = if ready { Ok(1) } else { set.sleep(deadline, core::ptr::null()) };
        self.ep.disarm(interest, set);
        slept
    }

    /// Whether a program that has ended its stream still has the socket open, so that it was a shutdown and not a
    /// close. A close that is in progress may look like a shutdown for a moment, and must not end the stream of the
    /// other sharers.
    fn is_held_still(&self) -> bool {
        let looks = if self.others == Others::None { 1 } else { RELAY_END_CHECKS };
        (0..looks).all(|look| {
            if look > 0 {
                time::pause();
            }
            self.is_held()
        })
    }

    fn is_held(&self) -> bool {
        if let (Some(local_end), Some(ours)) = (addr::peer_of(self.peer_end), addr::local_of(self.peer_end)) {
            return owner::is_held(local_end, ours);
        }
        // A UNIX socket reports POLLHUP once its peer is closed (unix(7)).
        raw::events_now(self.peer_end, 0) & libc::POLLHUP == 0
    }

    fn finish(mut self, end: Option<End>) {
        let abort = match end {
            None => false,
            Some(End::Closed) => !self.down.is_empty(),
            Some(End::Socket) => true,
            Some(End::Ring) => {
                // Bytes that came before the reset reach the program as far as its socket has room; an end of stream
                // would hide the reset.
                self.down.done = true;
                while self.step_down() == Ok(true) {}
                reset_at_close(self.peer_end);
                true
            }
        };
        self.ep.side.relay_ends();
        if self.others == Others::None {
            self.ep.close(abort);
        }
    }
}
