//! A queue pair has failed, and its connections go on over its companion connection, without a byte lost, repeated or
//! out of order.
//!
//! The side that notices first takes what its completion queue still holds, ends its queue pair, and says by TCP how
//! many messages it has received. The other side then does the same. Each sends the messages again that the other one
//! has not received, and goes on from there. Connections know nothing of it: their numbers, windows and ends are in the
//! messages.

use crate::host::{ProgramConn, host};
use crate::limits::FAILOVER_MESSAGES_PER_PASS;
use crate::rdma::engine::cell;
use crate::rdma::engine::exit_handoff;
use crate::rdma::engine::keepalive::UserTimeout;
use crate::rdma::engine::qp::{Payload, QpRecord, Stage};
use crate::rdma::engine::sysfs::devices_there;
use crate::rdma::engine::worker::Engine;
use crate::rdma::{Device, FailoverState, QpConn, Stream};
use alloc::vec::Vec;
use core::net::SocketAddr;
use core::sync::atomic::{AtomicU32, Ordering};
use netacc_stats::{Reason, Transport, page};
use netacc_sys::errno::Errno;
use netacc_sys::{raw, time};
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
pub(super) struct Failover {
    pub stream: Stream,
    pub state: FailoverState,
    /// Since when (ns) we have not told what we had received; 0: we have.
    unsaid: u64,
    /// Set once the last connection is over, and the other side has been told that nothing more will come.
    ended: bool,
    full: bool,
    /// The patience that the kernel was told.
    user_timeout: UserTimeout,
}

impl Failover {
    /// To be called when the move is over.
    pub fn end(self) {
        self.state.stats.hide();
    }

    /// Tells what we had received, unless that has been told.
    fn say(&mut self) {
        if core::mem::take(&mut self.unsaid) != 0 {
            self.stream.send(self.state.resume(), &[]);
        }
    }
}

impl Engine {
    /// To be called when a queue pair has failed. Its connections go on by TCP if it has a companion connection, else they end.
    pub(super) fn qp_failed(&mut self, at: usize, how: &str) {
        self.fail_over(at, how, 0);
    }

    /// To be called when a queue pair has failed, perhaps because the other side has ended it. Then that side speaks
    /// first by TCP, or its process is about to end: the kernel would turn that end into a reset if it found a message
    /// of ours that nobody has read.
    pub(super) fn qp_ended(&mut self, at: usize, how: &str) {
        let silent = self.qps.get(at).is_some_and(|e| e.error.is_some());
        self.fail_over(at, how, if silent { 0 } else { time::now() });
    }

    /// Goes over to the companion connection. What we had received is told at once if `unsaid` is 0.
    fn fail_over(&mut self, at: usize, how: &str, unsaid: u64) {
        // What was received before comes before the end, and must not be received again.
        self.complete_all();
        let Some(qp) = self.qps.get_mut(at) else { return };
        if !qp.is_up() {
            if !matches!(qp.stage, Stage::FailedOver(_)) {
                self.end_qp(at, how);
            }
            return;
        }
        let error = qp.error;
        let Some(fd) = qp.companion.take() else { return self.end_qp_with(at, how, error) };
        let (route, stage) = (qp.route, core::mem::replace(&mut qp.stage, Stage::Gone));
        let (Stage::Up(qp_conn), Some(device)) = (stage, self.devices.get_mut(qp.device)) else { return };
        let number = qp_conn.qp_num();
        qp_conn.disconnect();
        let left = qp_conn.into_failover(device);
        left.stats.failed_over();
        let mut stream = Stream::new(fd, left.most, left.size);
        if unsaid == 0 {
            stream.send(left.resume(), &[]);
        }
        let conns: Vec<usize> = qp.conns.values().copied().collect();
        let timeout = UserTimeout::default();
        qp.stage = Stage::FailedOver(Failover {
            stream,
            state: left,
            unsaid,
            ended: false,
            full: false,
            user_timeout: timeout,
        });
        self.companions.releases = RELEASES;
        self.companions.failed_over.push(at);
        self.feed();
        // New connections ask for another route.
        self.drop_route_qp(at, route);
        if !conns.is_empty() {
            netacc_log::log!(Warn, "QP {number}: failed ({how}); {} connections go on by TCP", conns.len());
        }
        for _ in &conns {
            page().demoted(Reason::QpFailed);
        }
        self.for_each_conn_of_program(&conns, |conn| {
            if let Some(e) = conn.stats {
                e.set_transport(Transport::Tcp);
                e.set_reason(Reason::QpFailed);
            }
        });
        self.be_patient(at);
        self.progress_failover(at);
    }

    /// Calls `f` with the program's side of these connections. On the server's host it may be another process's.
    pub(super) fn for_each_conn_of_program(&self, conns: &[usize], mut f: impl FnMut(&ProgramConn)) {
        let Some(host) = host().filter(|_| !exit_handoff::is_alone()) else { return };
        let told = |c: &usize| {
            let conn = self.conns.get(*c).filter(|c| c.kernel < 0)?;
            let open = &conn.ep.link().segment()?.slot(conn.slot)?.open;
            Some((open.address(0)?, open.address(1)?))
        };
        let pairs: Vec<(SocketAddr, SocketAddr)> = conns.iter().filter_map(told).collect();
        if pairs.is_empty() {
            return;
        }
        host.each_conn(&mut |conn| {
            if !(conn.ep.link().is_remote() || conn.ep.is_remote()) {
                return;
            }
            let Some((local, peer)) = conn.addresses.map(|(local, peer)| (plain(local), plain(peer))) else { return };
            if pairs
                .iter()
                .any(|(a, b)| (plain(*a), plain(*b)) == (local, peer) || (plain(*b), plain(*a)) == (local, peer))
            {
                f(conn);
            }
        });
    }

    /// Has the kernel give up when the most impatient of the programs here would have it give up (`TCP_USER_TIMEOUT`,
    /// keepalive).
    fn be_patient(&mut self, at: usize) {
        // In the copy nobody knows which program was most impatient; the patience stays as it was told before.
        if exit_handoff::is_alone() {
            return;
        }
        let Some(conns) = self.qps.get(at).map(|e| e.conns.values().copied().collect::<Vec<_>>()) else { return };
        let mut least = if conns.is_empty() { UserTimeout::OF_NOBODY } else { UserTimeout::default() };
        let mut known = conns.is_empty();
        self.for_each_conn_of_program(&conns, |conn| (known, least) = (true, least.and(UserTimeout::of(conn.socket))));
        if !known {
            // The connections belong to other processes by now, and the patience stays as it was told before.
            return;
        }
        if let Some(Stage::FailedOver(m)) = self.qps.get_mut(at).map(|e| &mut e.stage)
            && m.user_timeout != least
            && m.stream.fd() >= 0
        {
            m.user_timeout = least;
            least.apply(m.stream.fd());
        }
    }

    /// Carries what has come for failed queue pairs, and what they have to send. Returns whether there was anything.
    pub(super) fn progress_failovers(&mut self) -> bool {
        let mut busy = false;
        for n in 0..self.companions.failed_over.len() {
            if let Some(at) = self.companions.failed_over.get(n).copied() {
                busy |= self.progress_failover(at);
            }
        }
        busy
    }

    fn progress_failover(&mut self, at: usize) -> bool {
        let mut payload = core::mem::take(&mut self.companions.scratch);
        let mut taken = 0;
        let end = loop {
            let Some(Stage::FailedOver(m)) = self.qps.get_mut(at).map(|e| &mut e.stage) else { break None };
            if taken == FAILOVER_MESSAGES_PER_PASS {
                break None;
            }
            match m.stream.receive(&mut payload) {
                Ok(Some(frame)) if frame.kind == Kind::Resume => {
                    if m.stream.is_resumed() || !m.state.confirm(frame.acked) {
                        break Some(Errno::PROTO);
                    }
                    m.say();
                    m.stream.resume(core::mem::take(&mut m.state.retransmit));
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
        self.companions.scratch = payload;
        match end {
            // An end is news as well: a thread that waits for the last message looks before it sleeps.
            Some(e) => {
                self.lost(at, e);
                true
            }
            None => {
                self.push_failover(at);
                taken > 0
            }
        }
    }

    fn push_failover(&mut self, at: usize) {
        let Some(qp) = self.qps.get_mut(at) else { return };
        let idle = qp.conns.is_empty() && qp.resets.is_empty() && qp.route.is_some();
        let Stage::FailedOver(m) = &mut qp.stage else { return };
        m.stream.flush();
        if idle && !m.ended && m.stream.can_send() && !m.stream.is_full() {
            m.ended = true;
            let _ = raw::shutdown(m.stream.fd(), libc::SHUT_WR);
        }
        let (fd, full) = (m.stream.fd(), m.stream.is_full());
        if core::mem::replace(&mut m.full, full) != full {
            self.watch_failover(at, fd, full);
        }
        self.unstall(at);
    }

    /// To be called when the companion connection has ended: with the other side's process, or because the kernel has given up.
    fn lost(&mut self, at: usize, error: Errno) {
        match error {
            Errno(0) => self.end_qp(at, "the other side has ended it"),
            // The kernel there has thrown away what it still had to send.
            Errno::CONNRESET => self.end_qp_with(at, "the other side has reset it", Some(error)),
            Errno::PROTO => {
                page().count(netacc_stats::Counter::ProtocolErrors);
                self.end_qp_with(at, "the other side broke the rules", Some(Errno::CONNRESET));
            }
            e => self.end_qp_with(at, e.name(), Some(e)),
        }
    }

    /// Done once in a while: makes failed queue pairs as patient as their programs; where both sides wait for the other
    /// one's first message, sends it; lets devices go that are gone.
    pub(super) fn maintain_failovers(&mut self, now: u64) {
        for at in self.companions.failed_over.clone() {
            self.be_patient(at);
            if let Some(Stage::FailedOver(m)) = self.qps.get_mut(at).map(|e| &mut e.stage)
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
        let before = core::mem::replace(&mut self.companions.there, there);
        if before != there {
            // The first look only notes what is open.
            self.companions.releases = self.companions.releases.max(if before == 0 { 1 } else { RELEASES });
        }
        let removals = REMOVALS.load(Ordering::Relaxed);
        if core::mem::replace(&mut self.companions.removals, removals) != removals {
            self.companions.releases = RELEASES;
        }
        if self.companions.releases > 0 {
            self.companions.releases -= 1;
            self.release_devices();
        }
        if self.companions.releases == 0 {
            self.companions.removed.clear();
        }
    }

    /// Handles an event that a device reports unasked. Nothing else reports a failure of a queue pair on which nothing
    /// is under way.
    pub(super) fn device_says(&mut self, n: usize) {
        let Some(device) = self.devices.get(n) else { return };
        let (Some(event), device_fd) = (device.says(), device.says_fd()) else { return };
        netacc_log::log!(Info, "RDMA device {}: {}: {:?}", device.name(), event.event_type, event.element);
        let what = Said { device_fd, event };
        // All engines have the same descriptor, and the first one that reads gets the event.
        if cell::all().len() > 1 {
            self.said.push(what);
        }
        self.device_said(what);
    }

    /// Handles an event of a device that may concern this engine's queue pairs.
    pub(super) fn device_said(&mut self, Said { device_fd, event }: Said) {
        let Some((n, device)) = self.devices.iter().enumerate().find(|(_, d)| d.says_fd() == device_fd) else { return };
        let is_meant = |qp_conn: &QpConn| match event.element {
            Element::Qp(number) => qp_conn.qp_num() == number,
            Element::Cq(cookie) => device.cookie_of(qp_conn.cq()) == cookie,
            _ => false,
        };
        match event.element {
            Element::Device => self.device_goes(n),
            Element::Qp(_) | Element::Cq(_) if event.event_type.is_error() => {
                let here = |e: &QpRecord| matches!(&e.stage, Stage::Up(qp_conn) if e.device == n && is_meant(qp_conn));
                let failed: Vec<usize> = self.qps.each().filter(|(_, e)| here(e)).map(|(at, _)| at).collect();
                failed.into_iter().for_each(|at| self.qp_failed(at, "the device says that it has failed"));
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
        let on = |e: &QpRecord| e.device == device && matches!(e.stage, Stage::Up(_) | Stage::Connecting(_));
        let qps: Vec<usize> = self.qps.each().filter(|(_, e)| on(e)).map(|(at, _)| at).collect();
        for at in qps {
            if let Some(qp) = self.qps.get_mut(at) {
                qp.error = Some(Errno::CONNRESET);
            }
            self.qp_failed(at, "the device is removed");
        }
        let Some(device) = self.devices.get_mut(device) else { return };
        netacc_log::log!(Warn, "RDMA device {}: removed; its connections go on by TCP or end", device.name());
        if let Some(fds) = device.let_go() {
            self.companions.removed.extend(fds);
            self.cell.devices.fetch_sub(1, Ordering::Relaxed);
        }
        self.companions.releases = RELEASES;
        // Other engines may have the device too, and nothing on it by which they would hear.
        REMOVALS.fetch_add(1, Ordering::Relaxed);
        cell::all().iter().for_each(cell::EngineCell::ring);
    }

    /// Whether another engine has heard of a removal that this one has not.
    pub(super) fn has_missed_a_removal(&self) -> bool {
        self.companions.removals != REMOVALS.load(Ordering::Relaxed)
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
            self.companions.open = open;
            return;
        }
        if cell::all().iter().any(|cell| cell.devices.load(Ordering::Relaxed) > 0) {
            return;
        }
        // librdmacm does not notice that the host's last device has gone. So its numbers are made something harmless:
        // the kernel then sees the device closed, and the library has numbers that nobody else gets.
        let Some(events) = &self.events else { return };
        for fd in self.companions.removed.drain(..) {
            let _ = raw::dup3(events.fd(), fd, libc::O_CLOEXEC);
        }
        for device in self.companions.open.drain(..) {
            device.cover(events.fd());
        }
    }
}

fn plain(a: SocketAddr) -> SocketAddr {
    SocketAddr::new(a.ip().to_canonical(), a.port())
}
