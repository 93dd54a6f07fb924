//! A queue pair has failed, and its connections go on over its companion connection, without a byte lost, repeated or
//! out of order.
//!
//! The side that notices first takes what its completion queue still holds, ends its queue pair, and says by TCP how
//! many messages it has received. The other side then does the same. Each sends the messages again that the other one
//! has not received, and goes on from there. Connections know nothing of it: their numbers, windows and ends are in the
//! messages.

use crate::limits::FAILOVER_MESSAGES_PER_PASS;
use crate::rdma::engine::companions::Heard;
use crate::rdma::engine::failed::Failover;
use crate::rdma::engine::probe;
use crate::rdma::engine::qp::{Payload, QpRecord, Stage};
use crate::rdma::engine::removal::Said;
use crate::rdma::engine::status;
use crate::rdma::engine::worker::Engine;
use crate::rdma::{Device, QpConn};
use alloc::vec::Vec;
use core::sync::atomic::{Ordering, fence};
use netacc_stats::{Reason, Transport, page};
use netacc_sys::errno::Errno;
use netacc_sys::time;
use netacc_verbs::Element;
use netacc_wire::frame::Kind;

impl Engine {
    /// To be called when a queue pair has failed. Its connections go on by TCP if it has a companion connection, else
    /// they end.
    pub(super) fn qp_failed(&mut self, at: usize, how: &str) {
        self.fail_over(at, how, 0);
    }

    /// To be called when a queue pair has failed, perhaps because the other side has ended it. Then that side speaks
    /// first by TCP, or its process is about to end: the kernel would turn that end into a reset if it found a message
    /// of ours that nobody has read.
    pub(super) fn qp_ended(&mut self, at: usize, how: &str) {
        let silent = self.mux.qps.table.get(at).is_some_and(|e| e.error.is_some());
        self.fail_over(at, how, if silent { 0 } else { time::now() });
    }

    /// Goes over to the companion connection. What we had received is told at once if `unsaid` is 0.
    fn fail_over(&mut self, at: usize, how: &str, unsaid: u64) {
        // What was received before comes before the end, and must not be received again.
        self.complete_all();
        let Some(qp) = self.mux.qps.table.get_mut(at) else { return };
        if !qp.is_up() {
            if !qp.is_failed_over() {
                self.end_qp(at, how);
            }
            return;
        }
        let error = qp.error;
        let Some(fd) = qp.companion.take() else { return self.end_qp_with(at, how, error) };
        let (route, stage) = (qp.route, qp.take_stage());
        let (Stage::Up(qp_conn), Some(device)) = (stage, self.mux.qps.devices.get_mut(qp.device)) else { return };
        let number = qp_conn.qp_num();
        qp_conn.disconnect();
        let left = qp_conn.into_failover(device);
        left.stats.failed_over();
        let conns: Vec<usize> = qp.conns.values().copied().collect();
        qp.set_stage(Stage::FailedOver(Failover::new(fd, left, unsaid)));
        self.removals.suspect();
        self.companions.failed_over.push(at);
        self.mux.conns.feed();
        // New connections ask for another route.
        self.routes.drop_route_qp(&mut self.mux, at, route);
        if !conns.is_empty() {
            netacc_log::log!(Warn, "QP {number}: failed ({how}); {} connections go on by TCP", conns.len());
        }
        for _ in &conns {
            page().demoted(Reason::QpFailed);
        }
        // SeqCst: the entry of the queue pair says that it has failed, and then the sockets are looked for; a socket
        // that gets its connection meanwhile can be found, and then looks at that entry.
        fence(Ordering::SeqCst);
        self.mux.for_each_conn_of_program(&conns, |conn| {
            if let Some(e) = conn.stats {
                e.set_transport(Transport::Tcp);
                e.set_reason(Reason::QpFailed);
            }
        });
        self.mux.be_patient(at);
        self.progress_failover(at);
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
            let Some(Stage::FailedOver(m)) = self.mux.qps.table.get_mut(at).map(QpRecord::stage_mut) else {
                break None;
            };
            if taken == FAILOVER_MESSAGES_PER_PASS {
                break None;
            }
            match m.stream.receive(&mut payload) {
                Ok(Some(frame)) if frame.kind == Kind::Resume => {
                    if !m.resume(frame.acked) {
                        break Some(Errno::PROTO);
                    }
                    self.mux.conns.unstall(&mut self.mux.qps, at);
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
        let Some(qp) = self.mux.qps.table.get_mut(at) else { return };
        let idle = qp.conns.is_empty() && qp.resets.is_empty() && qp.route.is_some();
        let Stage::FailedOver(m) = qp.stage_mut() else { return };
        if let Some((fd, full)) = m.push(idle) {
            self.companions.watch_failover(&self.mux.qps, at, fd, full);
        }
        self.mux.conns.unstall(&mut self.mux.qps, at);
    }

    /// To be called when the companion connection has ended: with the other side's process, or because the kernel has
    /// given up.
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
            self.mux.be_patient(at);
            if let Some(Stage::FailedOver(m)) = self.mux.qps.table.get_mut(at).map(QpRecord::stage_mut) {
                m.say_if_late(now);
            }
        }
        if self.mux.qps.events.is_none() {
            return;
        }
        if self.removals.look() {
            self.release_devices();
        }
        self.removals.rest();
    }

    /// Handles an event that a device reports unasked. Nothing else reports a failure of a queue pair on which nothing
    /// is under way.
    pub(super) fn device_says(&mut self, n: usize) {
        let Some(device) = self.mux.qps.devices.get(n) else { return };
        let (Some(event), device_fd) = (device.says(), device.says_fd()) else { return };
        netacc_log::log!(Info, "RDMA device {}: {}: {:?}", device.name(), event.event_type, event.element);
        let what = Said { device_fd, event };
        // All engines have the same descriptor, and the first one that reads gets the event.
        if status::count() > 1 {
            self.said.push(what);
        }
        self.device_said(what);
    }

    /// Handles an event of a device that may concern this engine's queue pairs.
    pub(super) fn device_said(&mut self, Said { device_fd, event }: Said) {
        let Some((n, device)) = self.mux.qps.devices.iter().enumerate().find(|(_, d)| d.says_fd() == device_fd) else {
            return;
        };
        let is_meant = |qp_conn: &QpConn| match event.element {
            Element::Qp(number) => qp_conn.qp_num() == number,
            Element::Cq(cookie) => device.cookie_of(qp_conn.cq()) == cookie,
            _ => false,
        };
        match event.element {
            Element::Device => self.device_goes(n),
            Element::Qp(_) | Element::Cq(_) if event.event_type.is_error() => {
                let here = |e: &QpRecord| matches!(e.stage(), Stage::Up(qp_conn) if e.device == n && is_meant(qp_conn));
                let failed: Vec<usize> = self.mux.qps.table.each().filter(|(_, e)| here(e)).map(|(at, _)| at).collect();
                failed.into_iter().for_each(|at| self.qp_failed(at, "the device says that it has failed"));
            }
            _ => {}
        }
    }

    /// To be called when a device is being removed: everything on it goes on by TCP or ends, and the device is let go.
    pub(super) fn device_goes(&mut self, device: usize) {
        // Both the connection manager and the device itself may report it.
        if self.mux.qps.devices.get(device).is_none_or(|d| d.fd() < 0) {
            return;
        }
        let on = |e: &QpRecord| e.device == device && matches!(e.stage(), Stage::Up(_) | Stage::Connecting(_));
        let qps: Vec<usize> = self.mux.qps.table.each().filter(|(_, e)| on(e)).map(|(at, _)| at).collect();
        for at in qps {
            if let Some(qp) = self.mux.qps.table.get_mut(at) {
                qp.error = Some(Errno::CONNRESET);
            }
            self.qp_failed(at, "the device is removed");
        }
        let Some(device) = self.mux.qps.devices.get_mut(device) else { return };
        netacc_log::log!(Warn, "RDMA device {}: removed; its connections go on by TCP or end", device.name());
        let held = device.let_go();
        if held.is_some() {
            self.status.devices.subtract(1);
        }
        self.removals.gone(held);
    }

    /// After a failure: has librdmacm let go of a device that is removed, once nothing of ours is on it and the kernel
    /// does not list it any more, which is a while after the kernel has asked us to go. librdmacm has all devices of
    /// the host open, also those that none of our queue pairs was ever on.
    pub(super) fn release_devices(&mut self) {
        for d in 0..self.mux.qps.devices.len() {
            // If a queue pair failed first, nothing was left that could hear of the removal.
            if !self.mux.qps.devices.get(d).is_none_or(Device::forget_others) {
                self.device_goes(d);
            }
        }
        self.removals.release(self.mux.qps.events.as_ref());
    }

    /// Ends queue pairs that had failed, and have no companion connection to go on by any more.
    pub(super) fn end_lost(&mut self) {
        while let Some(at) = self.mux.qps.lost.pop() {
            self.end_qp_with(at, "there is no TCP connection to go on by", Some(Errno::CONNRESET));
        }
    }

    /// Companion connections, or what leads to one, have something.
    pub(super) fn serve_companions(&mut self) {
        for event in self.companions.events() {
            match self.companions.on_event(&mut self.mux.qps, event) {
                Heard::Nothing => {}
                Heard::Door(fd) => {
                    if self.listeners.doors().any(|door| door == fd) {
                        probe::answer(fd);
                    }
                }
                Heard::GoesOn(at) => self.qp_failed(at, "the other side goes on by TCP"),
            }
            self.end_lost();
        }
        self.companions.close_unawaited(&self.mux.qps);
    }
}
