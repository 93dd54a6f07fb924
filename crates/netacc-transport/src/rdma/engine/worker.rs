//! The engine: all that is carried, one round of the work, and what to sleep on.

use crate::rdma::engine::cell::EngineCell;
use crate::rdma::engine::companion::Companions;
use crate::rdma::engine::conn::Conn;
use crate::rdma::engine::failover::Said;
use crate::rdma::engine::limits::Limits;
use crate::rdma::engine::listeners::{RemoteListener, Request};
use crate::rdma::engine::local::Local;
use crate::rdma::engine::own_port;
use crate::rdma::engine::progress::SleepOn;
use crate::rdma::engine::qp::{Payload, QpRecord};
use crate::rdma::engine::ring_bypass::Reader;
use crate::rdma::engine::routes::RouteEntry;
use crate::rdma::engine::table::Table;
use crate::rdma::{Armed, Completion, Device, MsgPath};
use crate::shm::Link;
use crate::timeouts;
use crate::wakers;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use netacc_conf::Config;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::time;
use netacc_verbs::{Error, EventChannel, Wc};

/// Number of completions that are taken at a time.
const BATCH: usize = 16;
/// Time (ms) between the thread's looks for what has grown old.
const MAINTENANCE_MS: i64 = 1_000;
/// Time (ms) between its looks, while the program does the work, whether it still does.
const BRIEF: i64 = 2;
/// Number of such looks in a row, while the program does the work, before the thread looks at the work itself: that
/// would take the lock from the program's threads, mostly in the middle of a message, and that costs both more than the
/// message.
const NAPS: u32 = 32;

const FD_POLL_INTERVAL: u64 = time::ns(timeouts::FD_POLL_INTERVAL);

/// What to do after a round.
#[derive(Debug)]
pub(super) enum Step {
    /// Do another round.
    Again,
    /// Do another round after a moment.
    Poll,
    /// Make the connection manager's event channel, without the lock, since libraries may have to be loaded.
    Load,
    /// Sleep for at most `ms` milliseconds, and up to `naps` times while the program does the work.
    Sleep { ms: i64, naps: u32 },
}

/// What a descriptor is that the thread sleeps on.
#[derive(Clone, Copy, Debug)]
enum What {
    Waker,
    Events,
    Device(usize),
    Said(usize),
    LocalWaker(usize),
    Control(usize),
    Companions,
    /// A kernel socket of a connection whose side is several processes.
    Kernel(usize),
}

/// All that one thread carries.
#[derive(Debug)]
pub(super) struct Engine {
    /// Its number, and its place.
    pub index: usize,
    pub cell: &'static EngineCell,
    /// The connection manager's event channel, once it is needed: see [`managed`](Engine::managed).
    pub events: Option<EventChannel>,
    /// When (ns) the event channel could not be made; 0: it was made, or nobody has asked for it.
    pub unmanaged: u64,
    /// The waker by which the thread is told to look.
    pub waker: i32,
    pub devices: Vec<Device>,
    pub listeners: Vec<RemoteListener>,
    /// Requests that arrived there and are for other engines, kept until the lock is free.
    pub requests: Vec<Request>,
    /// What devices have reported that may concern other engines, kept until the lock is free.
    pub said: Vec<Said>,
    pub routes: Table<RouteEntry>,
    pub qps: Table<QpRecord>,
    pub conns: Table<Conn>,
    pub locals: Table<Local>,
    /// Set when the last round has left something to do: it has not seen the end of a completion queue, or of what it
    /// found.
    pub rest: bool,
    /// Room for completions, empty: clearing it anew for each look would be most of the cost of a look.
    found: Vec<Wc>,
    /// Connections that are to be looked at.
    pub ready: VecDeque<usize>,
    /// Queue pairs with messages that are put together, and not posted yet.
    pub unposted: Vec<usize>,
    /// Connections that wait for a buffer to send from.
    pub starved: VecDeque<usize>,
    /// Queue pairs that have failed.
    pub broken: Vec<usize>,
    /// Queue pairs whose other side breaks the rules.
    pub violators: Vec<usize>,
    /// The TCP connections beside queue pairs.
    pub companions: Companions,
    /// Connections that a descriptor of their own can wake.
    pub listed: Vec<usize>,
    /// The completions that the queues will report to the channels, once.
    pub armed: Armed,
    /// The turns of the program's threads ([`EngineCell::progress_count`]) that the thread knows of.
    pub progress_seen: u32,
    /// Connections that are still on kernel TCP.
    pub pending_upgrades: Vec<usize>,
    /// Value of [`ACCEPTED`](super::upgrade_server::ACCEPTED), the number of accepted connections that clients may ask for, at
    /// the last look.
    pub accepted: usize,
    /// Links for the server's end of connections that began on TCP: the program's side, and the place of ours.
    pub seats: Vec<(&'static Link, usize)>,
    /// What the thread sleeps on.
    pub sleep_on: SleepOn,
    /// Set when more buffers are needed, which the thread is to register: see [`Engine::grow`].
    pub short: bool,
    /// Set while a thread of the program sleeps on the completion channels: the number of devices whose channels it
    /// has.
    pub poller: Option<usize>,
    /// Set once completions were found that the thread had not been told of.
    pub doubted: bool,
    sleeps_on: Vec<(i32, i16, What)>,
    maintained: u64,
    /// When the thread looked at its descriptors last.
    polled_fds: u64,
    pub limits: Limits,
}

impl Engine {
    /// Makes engine `index`, which is to be at `cell`.
    pub fn new(conf: &Config, index: usize, cell: &'static EngineCell) -> Result<Engine> {
        let waker = wakers::create()?;
        let limits = Limits::new(conf, index);
        Ok(Engine {
            index,
            cell,
            events: None,
            unmanaged: 0,
            waker,
            devices: Vec::new(),
            listeners: Vec::new(),
            requests: Vec::new(),
            said: Vec::new(),
            routes: Table::default(),
            qps: Table::default(),
            conns: Table::default(),
            locals: Table::default(),
            rest: false,
            found: vec![Wc::default(); BATCH],
            ready: VecDeque::new(),
            unposted: Vec::with_capacity(BATCH),
            starved: VecDeque::new(),
            broken: Vec::with_capacity(BATCH),
            violators: Vec::new(),
            companions: Companions::default(),
            listed: Vec::new(),
            armed: Armed::No,
            progress_seen: 0,
            pending_upgrades: Vec::new(),
            accepted: 0,
            seats: Vec::new(),
            sleep_on: SleepOn::Awake,
            short: false,
            poller: None,
            doubted: false,
            sleeps_on: Vec::new(),
            maintained: time::now(),
            polled_fds: 0,
            limits,
        })
    }

    /// Has the thread look.
    pub fn ring(&self) {
        wakers::ring(self.waker);
    }

    /// Notes that more registered memory is needed.
    pub(super) fn is_short(&mut self) {
        if !core::mem::replace(&mut self.short, true) {
            self.ring();
        }
    }

    /// The thread's next step; `last` is when there was something to do.
    pub fn step(&mut self, fds: &mut Vec<libc::pollfd>, last: &mut u64) -> Step {
        let now = time::now();
        self.sleep_on = SleepOn::Awake;
        if self.wants_manager() {
            return Step::Load;
        }
        if core::mem::take(&mut self.short) {
            self.grow();
        }
        let busy = self.progress_once();
        if busy {
            *last = now;
        }
        if busy || now.saturating_sub(*last) < self.limits.poll_ns {
            if now.saturating_sub(self.polled_fds) < FD_POLL_INTERVAL {
                return if busy { Step::Again } else { Step::Poll };
            }
            self.list_for(fds);
            return Step::Sleep { ms: 0, naps: 1 };
        }
        let sleep = self.next_sleep();
        if !self.arm(sleep) {
            return Step::Again;
        }
        self.sleep_on = sleep;
        self.list_for(fds);
        match sleep {
            SleepOn::Brief => Step::Sleep { ms: BRIEF, naps: NAPS },
            _ if self.needs_maintenance() => Step::Sleep { ms: MAINTENANCE_MS, naps: 1 },
            _ => Step::Sleep { ms: 60 * MAINTENANCE_MS, naps: 1 },
        }
    }

    /// Does one round of the work; returns whether there was any.
    pub fn progress_once(&mut self) -> bool {
        self.progress_once_for(None)
    }

    /// Does one round of the work; what has come for `reader` goes to it.
    pub fn progress_once_for(&mut self, reader: Option<&mut Reader<'_, '_>>) -> bool {
        let mut busy = self.complete(reader);
        if self.cell.ticket_due.load(Ordering::Relaxed) && self.cell.ticket_due.swap(false, Ordering::SeqCst) {
            self.take_all_connects();
        }
        busy |= self.check_locals();
        if !self.pending_upgrades.is_empty() {
            self.check_pending();
        }
        // Connections that are queued meanwhile have their turn in the next round.
        for _ in 0..self.ready.len() {
            let Some(at) = self.ready.pop_front() else { break };
            busy = true;
            self.pump(at);
        }
        self.post_all();
        while let Some(qp_index) = self.violators.pop() {
            (busy, self.rest) = (true, true);
            self.end_qp_with(qp_index, "the other side broke the rules", Some(Errno::CONNRESET));
        }
        while let Some(qp_index) = self.broken.pop() {
            (busy, self.rest) = (true, true);
            self.qp_ended(qp_index, "the queue pair failed");
        }
        // A companion connection that has ended, or takes more again, carries nothing itself, but has queued
        // connections: then no thread sleeps.
        let more = self.progress_failovers() | !self.ready.is_empty();
        self.rest |= more;
        busy | more
    }

    /// Takes the completions of the engine's devices and handles them.
    pub(super) fn complete(&mut self, mut reader: Option<&mut Reader<'_, '_>>) -> bool {
        let mut busy = false;
        self.rest = false;
        let mut found = core::mem::take(&mut self.found);
        if found.is_empty() {
            // The buffer serves another look below.
            found.resize(BATCH, Wc::default());
        }
        for d in 0..self.devices.len() {
            for q in 0.. {
                let Some(cq) = self.devices.get(d).and_then(|d| d.cqs().nth(q)) else { break };
                let n = cq.poll(&mut found).unwrap_or(0);
                busy |= n > 0;
                self.rest |= n == found.len();
                for wc in found.iter_mut().take(n) {
                    self.completed(wc, reader.as_deref_mut());
                    // Not every driver writes the whole structure.
                    *wc = Wc::default();
                }
            }
        }
        self.found = found;
        busy
    }

    fn completed(&mut self, wc: &Wc, reader: Option<&mut Reader<'_, '_>>) {
        let at = super::qp::qp_of(wc.wr_id());
        // A late completion of a queue pair that is gone is dropped.
        if super::qp::tag(&self.qps, at) != (wc.wr_id() >> 32) as u32 {
            return;
        }
        let Some(qp) = self.qps.get_mut(at) else { return };
        if let Err(e) = wc.check() {
            return self.completed_badly(at, &e);
        }
        let Some((qp_conn, device)) = qp.live_parts(&mut self.devices) else { return };
        match qp_conn.completed(&mut device.pool, wc.wr_id(), wc.byte_len(), wc.imm_data()) {
            None => {
                netacc_stats::page().count(netacc_stats::Counter::ProtocolErrors);
                self.violators.push(at);
            }
            Some(Completion::Sent) => self.feed(),
            Some(Completion::Message(n, head)) => {
                if qp.opened.is_some() {
                    self.on_open_answered(at);
                }
                let frame = if head.brief { self.named(at, head.frame) } else { Some(head.frame) };
                let payload = Payload::Received(n, head.at, head.start, head.len);
                if frame.is_some_and(|frame| !self.messages(at, frame, payload, reader)) {
                    self.violators.push(at);
                }
                let Some(qp) = self.qps.get_mut(at) else { return };
                let Some((qp_conn, device)) = qp.live_parts(&mut self.devices) else { return };
                let short = qp_conn.wants_to_grow();
                if qp_conn.dealt_with(&mut device.pool, n, head.frame).is_err() {
                    self.broken.push(at);
                }
                if short {
                    self.is_short();
                }
            }
        }
        self.unstall(at);
    }

    /// Notes that the queue pair has failed. Most reasons may also mean that the other side has ended it.
    fn completed_badly(&mut self, at: usize, e: &Error) {
        let Some(qp) = self.qps.get_mut(at) else { return };
        let Some((qp_conn, _)) = qp.live_parts(&mut self.devices) else { return };
        netacc_log::log!(Debug, "QP {}: a request failed: {e}", qp_conn.qp_num());
        qp.error = qp.error.or(Some(e.errno()).filter(|e| *e == Errno::TIMEDOUT));
        self.broken.push(at);
    }

    /// A queue pair may have room again: has the connections that wait for it go on, in turn.
    pub(super) fn unstall(&mut self, at: usize) {
        let Some(qp) = self.qps.get_mut(at) else { return };
        while let Some(frame) = qp.resets.front().copied() {
            let Some(mut path) = qp.path(&mut self.devices).filter(MsgPath::can_send) else { return };
            if path.send(frame, &[]).is_err() {
                return self.broken.push(at);
            }
            qp.resets.pop_front();
        }
        if !qp.path(&mut self.devices).is_some_and(|path| path.can_send()) {
            return;
        }
        for _ in 0..qp.stalled.len() {
            let Some(qp) = self.qps.get_mut(at) else { return };
            let Some(c) = qp.stalled.pop_front() else { return };
            if let Some(conn) = self.conns.get_mut(c).filter(|c| c.stalled && c.qp == at) {
                conn.stalled = false;
                self.queue(c);
            }
        }
    }

    /// Takes everything that the queues hold before a queue pair is ended: what it has received comes before the end.
    pub(super) fn complete_all(&mut self) {
        // Bounded, since other queue pairs may bring completions without end; one has far fewer completions than this.
        for _ in 0..256 {
            if !self.complete(None) {
                return;
            }
        }
    }

    /// Devices on whose channels the thread sleeps: all, or those that are new since a thread of the program took the
    /// poller token.
    fn armed_devices(&self, sleep: SleepOn) -> core::ops::Range<usize> {
        let all = self.devices.len();
        match sleep {
            SleepOn::All | SleepOn::Awake => 0..all,
            SleepOn::Brief | SleepOn::Others => self.poller.unwrap_or(all)..all,
        }
    }

    /// To be called before a sleep: everything that may have news is to report it, except what the program's threads
    /// notice while they do the work. False if there is news already.
    fn arm(&mut self, sleep: SleepOn) -> bool {
        if !self.armed_devices(sleep).is_empty() {
            self.arm_queues();
        }
        let mut silent = true;
        for (_, local) in self.locals.each() {
            silent &= (sleep == SleepOn::Brief && local.is_ours()) || local.arm();
        }
        // Completions that came before the arming have no event.
        silent && !self.progress_once()
    }

    fn list_for(&mut self, fds: &mut Vec<libc::pollfd>) {
        self.list();
        fds.clear();
        fds.extend(self.sleeps_on.iter().map(|&(fd, events, _)| libc::pollfd { fd, events, revents: 0 }));
    }

    fn list(&mut self) {
        let mut list = core::mem::take(&mut self.sleeps_on);
        list.clear();
        const IN: i16 = libc::POLLIN;
        list.push((self.waker, IN, What::Waker));
        list.extend(self.events.iter().map(|events| (events.fd(), IN, What::Events)));
        if self.companions.epoll >= 0 {
            list.push((self.companions.epoll, IN, What::Companions));
        }
        let heard = self.armed_devices(self.sleep_on);
        let devices = self.devices.iter().enumerate().filter(|(n, _)| heard.contains(n));
        list.extend(devices.map(|(n, d)| (d.fd(), IN, What::Device(n))));
        list.extend(self.devices.iter().enumerate().map(|(n, d)| (d.says_fd(), IN, What::Said(n))));
        for (n, local) in self.locals.each() {
            list.push((local.waker(), IN, What::LocalWaker(n)));
            // The end of a link is reported once, to each engine that has it.
            if !local.ended {
                list.push((local.link.control_fd(), IN, What::Control(n)));
            }
        }
        let conns = &mut self.conns;
        self.listed.retain(|c| {
            let Some(conn) = conns.get_mut(*c).filter(|conn| conn.listed) else { return false };
            // The connection may have such a descriptor again, when it goes over to a kernel socket after the end
            // of its sharers.
            let Some((fd, events)) = conn.waits_on() else {
                conn.listed = false;
                return false;
            };
            conn.slept_on = (fd, events);
            // Nothing is wanted of the descriptor now, and its end would be reported over and over.
            if events != 0 {
                list.push((fd, events, What::Kernel(*c)));
            }
            true
        });
        self.sleeps_on = list;
    }

    /// After a sleep on what [`Engine::step`] listed.
    pub fn wake(&mut self, fds: &[libc::pollfd]) {
        let sleep = core::mem::replace(&mut self.sleep_on, SleepOn::Awake);
        if sleep == SleepOn::Others && self.complete(None) && core::mem::replace(&mut self.doubted, true) {
            // The thread that has the poller token does not do the work: a signal handler may have jumped out of its call. The
            // first time this is only noted, since these may be messages whose mark is still to come.
            self.poller = None;
        }
        let list = core::mem::take(&mut self.sleeps_on);
        for ((fd, _, what), p) in list.iter().zip(fds) {
            if p.revents == 0 || p.fd != *fd {
                continue;
            }
            match *what {
                What::Waker => wakers::silence(self.waker),
                What::Events => self.serve_cm_events(),
                What::Companions => self.serve_companions(),
                What::Device(n) => {
                    if let Some(d) = self.devices.get(n) {
                        d.take_events();
                        self.armed = Armed::No;
                    }
                }
                What::Said(n) => self.device_says(n),
                // Another thread may have changed things since: only descriptors that are still the same are read.
                What::LocalWaker(n) => {
                    if let Some(local) = self.locals.get(n).filter(|l| l.waker() == *fd) {
                        wakers::silence(local.waker());
                    }
                }
                What::Control(n) => {
                    if self.locals.get(n).is_some_and(|l| l.link.control_fd() == *fd) {
                        self.serve_local(n);
                    }
                }
                What::Kernel(c) => {
                    if let Some(conn) = self.conns.get(c) {
                        if conn.kernel < 0 {
                            conn.ep.on_liveness_event();
                        }
                        self.queue(c);
                    }
                }
            }
        }
        self.sleeps_on = list;
        if own_port::any_came() {
            self.take_guests();
        }
        let now = time::now();
        self.polled_fds = now;
        // Where an event has come, a thread that shares a processor with this one may be waiting for the answer to it.
        let news = fds.iter().any(|p| p.revents != 0);
        let often = match (self.needs_maintenance(), news) {
            (true, false) => MAINTENANCE_MS / 2,
            (true, true) => 2 * MAINTENANCE_MS,
            (false, _) => 50 * MAINTENANCE_MS,
        };
        if now.saturating_sub(self.maintained) > often as u64 * 1_000_000 {
            self.maintained = now;
            self.maintain(now);
        }
    }
}
