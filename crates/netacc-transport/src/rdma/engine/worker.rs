//! The engine: all that is carried, one round of the work, and what to sleep on.

use crate::rdma::engine::companions::{Companions, own_port};
use crate::rdma::engine::limits::Limits;
use crate::rdma::engine::listeners::Listeners;
use crate::rdma::engine::mux::Mux;
use crate::rdma::engine::mux::reader::Reader;
use crate::rdma::engine::qp::{Payload, qp_of, tag};
use crate::rdma::engine::removal::{Removals, Said};
use crate::rdma::engine::routes::Routes;
use crate::rdma::engine::sleep::{Sleep, SleepOn};
use crate::rdma::engine::status::EngineStatus;
use crate::rdma::{Armed, Completion};
use crate::{timeouts, wakers};
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use netacc_conf::Config;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::time;
use netacc_verbs::{Error, Wc};

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

impl What {
    /// Serves what a descriptor has reported. Another thread may have changed things since the sleep began: only descriptors
    /// that are still the same are read.
    fn serve(self, engine: &mut Engine, fd: i32) {
        match self {
            What::Waker => wakers::silence(engine.waker),
            What::Events => engine.serve_cm_events(),
            What::Companions => engine.serve_companions(),
            What::Device(n) => {
                if let Some(d) = engine.mux.qps.devices.get(n) {
                    d.take_events();
                    engine.sleep.armed = Armed::No;
                }
            }
            What::Said(n) => engine.device_says(n),
            What::LocalWaker(n) => {
                if let Some(local) = engine.mux.links.table.get(n).filter(|l| l.waker() == fd) {
                    wakers::silence(local.waker());
                }
            }
            What::Control(n) => {
                if engine.mux.links.table.get(n).is_some_and(|l| l.link.control.fd() == fd) {
                    engine.serve_local(n);
                }
            }
            What::Kernel(c) => {
                if let Some(conn) = engine.mux.conns.table.get(c) {
                    if conn.kernel < 0 {
                        conn.ep.on_liveness_event(u32::MAX);
                    }
                    engine.mux.conns.queue(c);
                }
            }
        }
    }
}

/// All that one thread carries.
#[derive(Debug)]
pub(super) struct Engine {
    /// The engine's number, and the words that other threads read without its lock.
    pub index: usize,
    pub status: &'static EngineStatus,
    /// The waker of the engine's thread.
    pub waker: i32,
    /// What it carries.
    pub mux: Mux,
    pub routes: Routes,
    pub listeners: Listeners,
    /// The TCP connections beside queue pairs.
    pub companions: Companions,
    pub removals: Removals,
    /// What devices have reported that may concern other engines, kept until the lock is free.
    pub said: Vec<Said>,
    pub sleep: Sleep,
    /// Set when the last round has left something to do: it has not seen the end of a completion queue, or of what it
    /// found.
    pub rest: bool,
    /// Room for completions, empty: clearing it anew for each look would be most of the cost of a look.
    found: Vec<Wc>,
    sleeps_on: Vec<(i32, i16, What)>,
    maintained: u64,
    /// When the thread looked at its descriptors last.
    polled_fds: u64,
}

impl Engine {
    /// Makes engine `index`, which other threads see by `status`.
    pub fn new(conf: &Config, index: usize, status: &'static EngineStatus) -> Result<Engine> {
        Ok(Engine {
            index,
            status,
            waker: wakers::create()?,
            mux: Mux::new(index, Limits::new(conf, index), status),
            routes: Routes::default(),
            listeners: Listeners::default(),
            companions: Companions::default(),
            removals: Removals::default(),
            said: Vec::new(),
            sleep: Sleep::default(),
            rest: false,
            found: vec![Wc::default(); BATCH],
            sleeps_on: Vec::new(),
            maintained: time::now(),
            polled_fds: 0,
        })
    }

    /// Has the thread look.
    pub fn ring(&self) {
        wakers::ring(self.waker);
    }

    /// Keeps the thread, which was about to sleep, awake, since it has something else to wait for: threads that sleep
    /// from now on hear the channels.
    pub fn stay_awake(&mut self) {
        self.sleep.on = SleepOn::Awake;
        self.mux.links.asleep = false;
    }

    /// The thread's next step; `last` is when there was something to do.
    pub fn step(&mut self, fds: &mut Vec<libc::pollfd>, last: &mut u64) -> Step {
        let now = time::now();
        self.stay_awake();
        if self.mux.qps.wants_manager() {
            return Step::Load;
        }
        if core::mem::take(&mut self.mux.qps.short) {
            self.mux.qps.grow();
            self.mux.conns.feed();
        }
        let busy = self.progress_once();
        if busy {
            *last = now;
        }
        if busy || now.saturating_sub(*last) < self.mux.qps.limits.poll_ns {
            if now.saturating_sub(self.polled_fds) < FD_POLL_INTERVAL {
                return if busy { Step::Again } else { Step::Poll };
            }
            self.list_for(fds);
            return Step::Sleep { ms: 0, naps: 1 };
        }
        let sleep = self.sleep.next(self.status);
        if !self.arm(sleep) {
            return Step::Again;
        }
        (self.sleep.on, self.mux.links.asleep) = (sleep, true);
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
        if self.status.ticket_due.load(Ordering::Relaxed) && self.status.ticket_due.swap(false, Ordering::SeqCst) {
            self.routes.take_all_connects(&mut self.mux);
        }
        busy |= self.check_locals();
        if !self.mux.conns.pending_upgrades.is_empty() {
            self.mux.check_pending();
        }
        // Connections that are queued meanwhile have their turn in the next round.
        for _ in 0..self.mux.conns.ready.len() {
            let Some(at) = self.mux.conns.ready.pop_front() else { break };
            busy = true;
            self.mux.pump(at);
        }
        self.mux.qps.post_all();
        while let Some(qp_index) = self.mux.qps.violators.pop() {
            (busy, self.rest) = (true, true);
            self.end_qp_with(qp_index, "the other side broke the rules", Some(Errno::CONNRESET));
        }
        while let Some(qp_index) = self.mux.qps.broken.pop() {
            (busy, self.rest) = (true, true);
            self.qp_ended(qp_index, "the queue pair failed");
        }
        // A companion connection that has ended, or takes more again, carries nothing itself, but has queued
        // connections: then no thread sleeps.
        let more = self.progress_failovers() | !self.mux.conns.ready.is_empty();
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
        for d in 0..self.mux.qps.devices.len() {
            for q in 0.. {
                let Some(cq) = self.mux.qps.devices.get(d).and_then(|d| d.cqs().nth(q)) else { break };
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
        let at = qp_of(wc.wr_id());
        // A late completion of a queue pair that is gone is dropped.
        if tag(&self.mux.qps.table, at) != (wc.wr_id() >> 32) as u32 {
            return;
        }
        let Some(qp) = self.mux.qps.table.get_mut(at) else { return };
        if let Err(e) = wc.check() {
            return self.completed_badly(at, &e);
        }
        let Some((qp_conn, device)) = qp.live_parts(&mut self.mux.qps.devices) else { return };
        match qp_conn.completed(&mut device.pool, wc.wr_id(), wc.byte_len(), wc.imm_data()) {
            None => {
                netacc_stats::page().count(netacc_stats::Counter::ProtocolErrors);
                self.mux.qps.violators.push(at);
            }
            Some(Completion::Sent) => self.mux.conns.feed(),
            Some(Completion::Message(n, head)) => {
                if qp.opened.is_some() {
                    self.routes.on_open_answered(&mut self.mux, at);
                }
                let frame = if head.brief { self.mux.named(at, head.frame) } else { Some(head.frame) };
                let payload = Payload::Received(n, head.at, head.start, head.len);
                if frame.is_some_and(|frame| !self.messages(at, frame, payload, reader)) {
                    self.mux.qps.violators.push(at);
                }
                let Some(qp) = self.mux.qps.table.get_mut(at) else { return };
                let Some((qp_conn, device)) = qp.live_parts(&mut self.mux.qps.devices) else { return };
                let short = qp_conn.wants_to_grow();
                if qp_conn.dealt_with(&mut device.pool, n, head.frame).is_err() {
                    self.mux.qps.broken.push(at);
                }
                if short {
                    self.mux.qps.is_short();
                }
            }
        }
        self.mux.conns.unstall(&mut self.mux.qps, at);
    }

    /// Notes that the queue pair has failed. Most reasons may also mean that the other side has ended it.
    fn completed_badly(&mut self, at: usize, e: &Error) {
        let Some(qp) = self.mux.qps.table.get_mut(at) else { return };
        let Some((qp_conn, _)) = qp.live_parts(&mut self.mux.qps.devices) else { return };
        netacc_log::log!(Debug, "QP {}: a request failed: {e}", qp_conn.qp_num());
        qp.error = qp.error.or(Some(e.errno()).filter(|e| *e == Errno::TIMEDOUT));
        self.mux.qps.broken.push(at);
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

    /// To be called before a sleep: everything that may have news is to report it, except what the program's threads
    /// notice while they do the work. False if there is news already.
    fn arm(&mut self, sleep: SleepOn) -> bool {
        if !self.sleep.channels(sleep, self.mux.qps.devices.len()).is_empty() {
            self.sleep.arm(&self.mux.qps.devices);
        }
        let mut silent = true;
        for (_, local) in self.mux.links.table.each() {
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
        list.extend(self.mux.qps.events.iter().map(|events| (events.fd(), IN, What::Events)));
        if self.companions.watch.epoll >= 0 {
            list.push((self.companions.watch.epoll, IN, What::Companions));
        }
        let heard = self.sleep.channels(self.sleep.on, self.mux.qps.devices.len());
        let devices = self.mux.qps.devices.iter().enumerate().filter(|(n, _)| heard.contains(n));
        list.extend(devices.map(|(n, d)| (d.fd(), IN, What::Device(n))));
        list.extend(self.mux.qps.devices.iter().enumerate().map(|(n, d)| (d.says_fd(), IN, What::Said(n))));
        for (n, local) in self.mux.links.table.each() {
            list.push((local.waker(), IN, What::LocalWaker(n)));
            // The end of a link is reported once, to each engine that has it.
            if !local.ended && local.link.control.fd_to_poll() >= 0 {
                list.push((local.link.control.fd(), IN, What::Control(n)));
            }
        }
        let conns = &mut self.mux.conns.table;
        self.mux.conns.listed.retain(|c| {
            let Some(conn) = conns.get_mut(*c).filter(|conn| conn.slept_on.is_some()) else { return false };
            // The connection may have such a descriptor again, when it switches to a kernel socket after the end of its
            // sharers.
            let Some((fd, events)) = conn.waits_on() else {
                conn.slept_on = None;
                return false;
            };
            conn.slept_on = Some((fd, events));
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
        let sleep = self.sleep.on;
        self.stay_awake();
        if sleep == SleepOn::Others && self.complete(None) && core::mem::replace(&mut self.sleep.doubted, true) {
            // The thread that has the poller token does not do the work: a signal handler may have jumped out of its
            // call. The first time this is only noted, since these may be messages whose mark is still to come.
            self.sleep.poller = None;
        }
        let list = core::mem::take(&mut self.sleeps_on);
        for ((fd, _, what), p) in list.iter().zip(fds) {
            if p.revents == 0 || p.fd != *fd {
                continue;
            }
            what.serve(self, *fd);
        }
        self.sleeps_on = list;
        if own_port::any_came() {
            self.companions.take_guests(&mut self.mux.qps);
            self.end_lost();
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
        if now.saturating_sub(self.maintained) > often.unsigned_abs() * 1_000_000 {
            self.maintained = now;
            self.maintain(now);
        }
    }
}
