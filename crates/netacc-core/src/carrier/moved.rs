//! A queue pair has failed, and its connections go on over its base, without a byte lost, repeated or out of order.
//!
//! The side that notices first takes what its completion queue still holds, ends its queue pair, and says by TCP how
//! many messages it has received. The other side then does the same. Each sends the messages again that the other one
//! has not received, and goes on from there. Connections know nothing of it: their numbers, windows and ends are in the
//! messages.

use crate::carrier::engine::Engine;
use crate::carrier::engines;
use crate::carrier::entry::{Entry, Payload, Stage};
use crate::carrier::outlive;
use crate::carrier::quiet::Patience;
use crate::carrier::sysfs::devices_there;
use crate::fdtable;
use crate::limits::FAILOVER_MESSAGES_PER_PASS;
use crate::socket::{Path, Socket};
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicU32, Ordering};
use netacc_stats::{Reason, Transport, page};
use netacc_sys::errno::Errno;
use netacc_sys::{raw, time};
use netacc_transport::rdma::{Device, Left, Pipe, Stream};
use netacc_verbs::{AsyncEvent, Element};
use netacc_wire::frame::Kind;

/// So long (ns) the other side may take to say by TCP that it has ended the queue pair, or to end with its process.
const FIRST_WORD: u64 = 500_000_000;
/// Number of times, about once a second, that removed devices are let go of after a failure.
const RELEASES: u32 = 15;

/// Number of devices that were removed, whichever engine heard of it.
pub(super) static REMOVALS: AtomicU32 = AtomicU32::new(0);

/// An event of a device, and the descriptor by which it came.
#[derive(Clone, Copy, Debug)]
pub(super) struct Said {
    device_fd: i32,
    event: AsyncEvent,
}

/// What is kept of a queue pair that has failed.
#[derive(Debug)]
pub(super) struct Moved {
    pub stream: Stream,
    pub left: Left,
    /// Since when (ns) we have not told what we had received; 0: we have.
    unsaid: u64,
    /// Set once the last connection is over, and the other side has been told that nothing more will come.
    ended: bool,
    full: bool,
    /// The patience that the kernel was told.
    patience: Patience,
}

impl Moved {
    /// To be called when the move is over.
    pub fn end(self) {
        self.left.shown.hide();
    }

    /// Tells what we had received, unless that has been told.
    fn say(&mut self) {
        if core::mem::take(&mut self.unsaid) != 0 {
            self.stream.send(self.left.resume(), &[]);
        }
    }
}

impl Engine {
    /// To be called when a queue pair has failed. Its connections go on by TCP if it has a base, else they end.
    pub(super) fn pipe_failed(&mut self, at: usize, how: &str) {
        self.go_over(at, how, 0);
    }

    /// To be called when a queue pair has failed, perhaps because the other side has ended it. Then that side speaks
    /// first by TCP, or its process is about to end: the kernel would turn that end into a reset if it found a message
    /// of ours that nobody has read.
    pub(super) fn pipe_ended(&mut self, at: usize, how: &str) {
        let silent = self.pipes.get(at).is_some_and(|e| e.error.is_some());
        self.go_over(at, how, if silent { 0 } else { time::now() });
    }

    /// Goes over to the base. What we had received is told at once if `unsaid` is 0.
    fn go_over(&mut self, at: usize, how: &str, unsaid: u64) {
        // What was received before comes before the end, and must not be received again.
        self.complete_all();
        let Some(entry) = self.pipes.get_mut(at) else { return };
        if !entry.is_up() {
            if !matches!(entry.stage, Stage::Moved(_)) {
                self.end_pipe(at, how);
            }
            return;
        }
        let error = entry.error;
        let Some(fd) = entry.base.take() else { return self.end_pipe_with(at, how, error) };
        let (route, stage) = (entry.route, core::mem::replace(&mut entry.stage, Stage::Gone));
        let (Stage::Up(pipe), Some(device)) = (stage, self.devices.get_mut(entry.device)) else { return };
        let qp = pipe.qp_num();
        pipe.disconnect();
        let left = pipe.leave(device);
        left.shown.moved();
        let mut stream = Stream::new(fd, left.most, left.size);
        if unsaid == 0 {
            stream.send(left.resume(), &[]);
        }
        let conns: Vec<usize> = entry.conns.values().copied().collect();
        let patience = Patience::default();
        entry.stage = Stage::Moved(Moved { stream, left, unsaid, ended: false, full: false, patience });
        self.bases.releases = RELEASES;
        self.bases.moved.push(at);
        self.feed();
        // New connections ask for another route.
        self.leave_route(at, route);
        if !conns.is_empty() {
            crate::log!(Warn, "QP {qp}: failed ({how}); {} connections go on by TCP", conns.len());
        }
        for _ in &conns {
            page().demoted(Reason::QpFailed);
        }
        self.tell_sockets(&conns, |s| {
            if let Some(e) = s.stats() {
                e.set_transport(Transport::Tcp);
                e.set_reason(Reason::QpFailed);
            }
        });
        self.be_patient(at);
        self.look_at_moved(at);
    }

    /// Calls `f` for the sockets of this process that are an end of one of these connections. On the server's host they
    /// may be another process's.
    pub(super) fn tell_sockets(&self, conns: &[usize], mut f: impl FnMut(&'static Socket)) {
        if outlive::is_alone() {
            return;
        }
        let told = |c: &usize| {
            let conn = self.conns.get(*c).filter(|c| c.kernel < 0)?;
            let open = &conn.ep.link().segment()?.slot(conn.slot)?.open;
            Some((open.told(0)?, open.told(1)?))
        };
        let pairs: Vec<(SocketAddr, SocketAddr)> = conns.iter().filter_map(told).collect();
        if pairs.is_empty() {
            return;
        }
        fdtable::each(0, usize::MAX, |_, e| {
            let fdtable::Entry::Socket(r) = e else { return };
            let s = r.obj;
            if s.path() != Path::Shm || !s.endpoint().is_some_and(|ep| ep.link().is_far() || ep.is_far()) {
                return;
            }
            let Some((local, peer)) = s.local.get().zip(s.peer.get()).map(|(l, p)| (plain(l), plain(p))) else {
                return;
            };
            if pairs
                .iter()
                .any(|(a, b)| (plain(*a), plain(*b)) == (local, peer) || (plain(*b), plain(*a)) == (local, peer))
            {
                f(s);
            }
        });
    }

    /// Has the kernel give up when the most impatient of the programs here would have it give up (`TCP_USER_TIMEOUT`,
    /// keepalive).
    fn be_patient(&mut self, at: usize) {
        // In the copy nobody knows which program was most impatient; the patience stays as it was told before.
        if outlive::is_alone() {
            return;
        }
        let Some(conns) = self.pipes.get(at).map(|e| e.conns.values().copied().collect::<Vec<_>>()) else { return };
        let mut least = if conns.is_empty() { Patience::OF_NOBODY } else { Patience::default() };
        let mut known = conns.is_empty();
        self.tell_sockets(&conns, |s| (known, least) = (true, least.and(Patience::of(s))));
        if !known {
            // The connections belong to other processes by now, and the patience stays as it was told before.
            return;
        }
        if let Some(Stage::Moved(m)) = self.pipes.get_mut(at).map(|e| &mut e.stage)
            && m.patience != least
            && m.stream.fd() >= 0
        {
            m.patience = least;
            least.tell(m.stream.fd());
        }
    }

    /// Carries what has come for failed queue pairs, and what they have to send. Returns whether there was anything.
    pub(super) fn carry_moved(&mut self) -> bool {
        let mut busy = false;
        for n in 0..self.bases.moved.len() {
            if let Some(at) = self.bases.moved.get(n).copied() {
                busy |= self.look_at_moved(at);
            }
        }
        busy
    }

    fn look_at_moved(&mut self, at: usize) -> bool {
        let mut payload = core::mem::take(&mut self.bases.scratch);
        let mut taken = 0;
        let end = loop {
            let Some(Stage::Moved(m)) = self.pipes.get_mut(at).map(|e| &mut e.stage) else { break None };
            if taken == FAILOVER_MESSAGES_PER_PASS {
                break None;
            }
            match m.stream.receive(&mut payload) {
                Ok(Some(frame)) if frame.kind == Kind::Resume => {
                    if m.stream.is_resumed() || !m.left.confirm(frame.heard) {
                        break Some(Errno::PROTO);
                    }
                    m.say();
                    m.stream.resume(core::mem::take(&mut m.left.again));
                    self.unstall(at);
                }
                // The first message of the other side tells what it has received.
                Ok(Some(frame)) => {
                    if !m.stream.is_resumed() || !self.messages(at, frame, Payload::Bytes(&payload), None) {
                        break Some(Errno::PROTO);
                    }
                }
                Ok(None) => break None,
                Err(e) => break Some(e),
            }
            taken += 1;
        };
        self.bases.scratch = payload;
        match end {
            // An end is news as well: a thread that waits for the last message looks before it sleeps.
            Some(e) => {
                self.lost(at, e);
                true
            }
            None => {
                self.push_moved(at);
                taken > 0
            }
        }
    }

    fn push_moved(&mut self, at: usize) {
        let Some(entry) = self.pipes.get_mut(at) else { return };
        let idle = entry.conns.is_empty() && entry.resets.is_empty() && entry.route.is_some();
        let Stage::Moved(m) = &mut entry.stage else { return };
        m.stream.flush();
        if idle && !m.ended && m.stream.can_send() && !m.stream.is_full() {
            m.ended = true;
            let _ = raw::shutdown(m.stream.fd(), libc::SHUT_WR);
        }
        let (fd, full) = (m.stream.fd(), m.stream.is_full());
        if core::mem::replace(&mut m.full, full) != full {
            self.watch_moved(at, fd, full);
        }
        self.unstall(at);
    }

    /// To be called when the base has ended: with the other side's process, or because the kernel has given up.
    fn lost(&mut self, at: usize, error: Errno) {
        match error {
            Errno(0) => self.end_pipe(at, "the other side has ended it"),
            // The kernel there has thrown away what it still had to send.
            Errno::CONNRESET => self.end_pipe_with(at, "the other side has reset it", Some(error)),
            Errno::PROTO => {
                page().count(netacc_stats::Counter::ProtocolErrors);
                self.end_pipe_with(at, "the other side broke the rules", Some(Errno::CONNRESET));
            }
            e => self.end_pipe_with(at, e.name(), Some(e)),
        }
    }

    /// Done once in a while: makes failed queue pairs as patient as their programs; where both sides wait for the other
    /// one's first message, sends it; lets devices go that are gone.
    pub(super) fn look_after_moved(&mut self, now: u64) {
        for at in self.bases.moved.clone() {
            self.be_patient(at);
            if let Some(Stage::Moved(m)) = self.pipes.get_mut(at).map(|e| &mut e.stage)
                && now.saturating_sub(m.unsaid) > FIRST_WORD
            {
                m.say();
            }
        }
        if self.events.is_none() {
            return;
        }
        // librdmacm has all devices open, and the removal of a device that we never used waits for us too. Nobody
        // reports that.
        let there = devices_there();
        let before = core::mem::replace(&mut self.bases.there, there);
        if before != there {
            // The first look only notes what is open.
            self.bases.releases = self.bases.releases.max(if before == 0 { 1 } else { RELEASES });
        }
        let removals = REMOVALS.load(Ordering::Relaxed);
        if core::mem::replace(&mut self.bases.removals, removals) != removals {
            self.bases.releases = RELEASES;
        }
        if self.bases.releases > 0 {
            self.bases.releases -= 1;
            self.release_devices();
        }
        if self.bases.releases == 0 {
            self.bases.removed.clear();
        }
    }

    /// Handles an event that a device reports unasked. Nothing else reports a failure of a queue pair on which nothing
    /// is under way.
    pub(super) fn device_says(&mut self, n: usize) {
        let Some(device) = self.devices.get(n) else { return };
        let (Some(event), device_fd) = (device.says(), device.says_fd()) else { return };
        crate::log!(Info, "RDMA device {}: {}: {:?}", device.name(), event.event_type, event.element);
        let what = Said { device_fd, event };
        // All engines have the same descriptor, and the first one that reads gets the event.
        if engines::all().len() > 1 {
            self.said.push(what);
        }
        self.device_said(what);
    }

    /// Handles an event of a device that may concern this engine's queue pairs.
    pub(super) fn device_said(&mut self, Said { device_fd, event }: Said) {
        let Some((n, device)) = self.devices.iter().enumerate().find(|(_, d)| d.says_fd() == device_fd) else { return };
        let is_meant = |pipe: &Pipe| match event.element {
            Element::Qp(number) => pipe.qp_num() == number,
            Element::Cq(cookie) => device.cookie_of(pipe.cq()) == cookie,
            _ => false,
        };
        match event.element {
            Element::Device => self.device_goes(n),
            Element::Qp(_) | Element::Cq(_) if event.event_type.is_error() => {
                let here = |e: &Entry| matches!(&e.stage, Stage::Up(pipe) if e.device == n && is_meant(pipe));
                let failed: Vec<usize> = self.pipes.each().filter(|(_, e)| here(e)).map(|(at, _)| at).collect();
                failed.into_iter().for_each(|at| self.pipe_failed(at, "the device says that it has failed"));
            }
            _ => {}
        }
    }

    /// To be called when a device is being removed: everything on it goes on by TCP or ends, and the device is let go.
    pub(super) fn device_goes(&mut self, device: usize) {
        // Both the connection manager and the device itself may report it.
        if self.devices.get(device).is_none_or(|d| d.fd() < 0) {
            return;
        }
        let on = |e: &Entry| e.device == device && matches!(e.stage, Stage::Up(_) | Stage::Connecting(_));
        let pipes: Vec<usize> = self.pipes.each().filter(|(_, e)| on(e)).map(|(at, _)| at).collect();
        for at in pipes {
            if let Some(entry) = self.pipes.get_mut(at) {
                entry.error = Some(Errno::CONNRESET);
            }
            self.pipe_failed(at, "the device is removed");
        }
        let Some(device) = self.devices.get_mut(device) else { return };
        crate::log!(Warn, "RDMA device {}: removed; its connections go on by TCP or end", device.name());
        if let Some(fds) = device.let_go() {
            self.bases.removed.extend(fds);
            self.place.devices.fetch_sub(1, Ordering::Relaxed);
        }
        self.bases.releases = RELEASES;
        // Other engines may have the device too, and nothing on it by which they would hear.
        REMOVALS.fetch_add(1, Ordering::Relaxed);
        engines::all().iter().for_each(engines::Place::ring);
    }

    /// Whether another engine has heard of a removal that this one has not.
    pub(super) fn has_missed_a_removal(&self) -> bool {
        self.bases.removals != REMOVALS.load(Ordering::Relaxed)
    }

    /// After a failure: has librdmacm let go of a device that is removed, once nothing of ours is on it and the kernel
    /// does not list it any more, which is a while after the kernel has asked us to go. librdmacm has all devices of
    /// the host open, also those that none of our queue pairs was ever on.
    pub(super) fn release_devices(&mut self) {
        for d in 0..self.devices.len() {
            // If a queue pair failed first, nothing was left that could hear of the removal.
            if !self.devices.get(d).is_none_or(Device::forget_others) {
                self.device_goes(d);
            }
        }
        if let Ok(open) = netacc_verbs::cm::release_removed_devices() {
            self.bases.open = open;
            return;
        }
        if engines::all().iter().any(|place| place.devices.load(Ordering::Relaxed) > 0) {
            return;
        }
        // librdmacm does not notice that the host's last device has gone. So its numbers are made something harmless:
        // the kernel then sees the device closed, and the library has numbers that nobody else gets.
        let Some(events) = &self.events else { return };
        for fd in self.bases.removed.drain(..) {
            let _ = raw::dup3(events.fd(), fd, libc::O_CLOEXEC);
        }
        for device in self.bases.open.drain(..) {
            device.cover(events.fd());
        }
    }
}

fn plain(a: SocketAddr) -> SocketAddr {
    SocketAddr::new(a.ip().to_canonical(), a.port())
}
