//! The engine: all that is carried, one round of the work, and what to sleep on.

use crate::carrier::base::Bases;
use crate::carrier::conn::Conn;
use crate::carrier::direct::Reader;
use crate::carrier::drive::Watch;
use crate::carrier::engines::Place;
use crate::carrier::entry::{Entry, Payload};
use crate::carrier::limits::Limits;
use crate::carrier::listeners::{FarListener, Request};
use crate::carrier::local::Local;
use crate::carrier::moved::Said;
use crate::carrier::own_port;
use crate::carrier::routes::RouteEntry;
use crate::carrier::table::Table;
use crate::timeouts;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use netacc_conf::Config;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::time;
use netacc_transport::bells;
use netacc_transport::rdma::{Armed, Completion, Device, Way};
use netacc_transport::shm::Link;
use netacc_verbs::{Error, EventChannel, Wc};

/// Number of completions that are taken at a time.
const BATCH: usize = 16;
/// Time (ms) between the thread's looks for what has grown old.
const TIDY: i64 = 1_000;
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
    Bell,
    Events,
    Device(usize),
    Said(usize),
    LocalBell(usize),
    Control(usize),
    Bases,
    /// A kernel socket of a connection whose side is several processes.
    Kernel(usize),
}

/// All that one thread carries.
#[derive(Debug)]
pub(super) struct Engine {
    /// Its number, and its place.
    pub index: usize,
    pub place: &'static Place,
    /// The connection manager's event channel, once it is needed: see [`managed`](Engine::managed).
    pub events: Option<EventChannel>,
    /// When (ns) the event channel could not be made; 0: it was made, or nobody has asked for it.
    pub unmanaged: u64,
    /// The doorbell by which the thread is told to look.
    pub bell: i32,
    pub devices: Vec<Device>,
    pub listeners: Vec<FarListener>,
    /// Requests that arrived there and are for other engines, kept until the lock is free.
    pub requests: Vec<Request>,
    /// What devices have reported that may concern other engines, kept until the lock is free.
    pub said: Vec<Said>,
    pub routes: Table<RouteEntry>,
    pub pipes: Table<Entry>,
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
    pub liars: Vec<usize>,
    /// The TCP connections beside queue pairs.
    pub bases: Bases,
    /// Connections that a descriptor of their own can wake.
    pub listed: Vec<usize>,
    /// The completions that the queues will report to the channels, once.
    pub armed: Armed,
    /// The turns of the program's threads ([`Place::turns`]) that the thread knows of.
    pub turns_seen: u32,
    /// Connections that are still on kernel TCP.
    pub early: Vec<usize>,
    /// Value of [`ACCEPTED`](super::asked::ACCEPTED), the number of accepted connections that clients may ask for, at
    /// the last look.
    pub accepted: usize,
    /// Links for the server's end of connections that began on TCP: the program's side, and the place of ours.
    pub seats: Vec<(&'static Link, usize)>,
    /// What the thread sleeps on.
    pub watch: Watch,
    /// Set when more buffers are needed, which the thread is to register: see [`Engine::supply`].
    pub short: bool,
    /// Set while a thread of the program sleeps on the completion channels: the number of devices whose channels it
    /// has.
    pub duty: Option<usize>,
    /// Set once completions were found that the thread had not been told of.
    pub doubted: bool,
    sleeps_on: Vec<(i32, i16, What)>,
    tidied: u64,
    /// When the thread looked at its descriptors last.
    looked: u64,
    pub limits: Limits,
}

impl Engine {
    /// Makes engine `index`, which is to be at `place`.
    pub fn new(conf: &Config, index: usize, place: &'static Place) -> Result<Engine> {
        let bell = bells::create()?;
        let limits = Limits::new(conf, index);
        Ok(Engine {
            index,
            place,
            events: None,
            unmanaged: 0,
            bell,
            devices: Vec::new(),
            listeners: Vec::new(),
            requests: Vec::new(),
            said: Vec::new(),
            routes: Table::default(),
            pipes: Table::default(),
            conns: Table::default(),
            locals: Table::default(),
            rest: false,
            found: vec![Wc::default(); BATCH],
            ready: VecDeque::new(),
            unposted: Vec::with_capacity(BATCH),
            starved: VecDeque::new(),
            broken: Vec::with_capacity(BATCH),
            liars: Vec::new(),
            bases: Bases::default(),
            listed: Vec::new(),
            armed: Armed::No,
            turns_seen: 0,
            early: Vec::new(),
            accepted: 0,
            seats: Vec::new(),
            watch: Watch::Awake,
            short: false,
            duty: None,
            doubted: false,
            sleeps_on: Vec::new(),
            tidied: time::now(),
            looked: 0,
            limits,
        })
    }

    /// Has the thread look.
    pub fn ring(&self) {
        bells::ring(self.bell);
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
        self.watch = Watch::Awake;
        if self.wants_manager() {
            return Step::Load;
        }
        if core::mem::take(&mut self.short) {
            self.supply();
        }
        let busy = self.round();
        if busy {
            *last = now;
        }
        if busy || now.saturating_sub(*last) < self.limits.poll_ns {
            if now.saturating_sub(self.looked) < FD_POLL_INTERVAL {
                return if busy { Step::Again } else { Step::Poll };
            }
            self.list_for(fds);
            return Step::Sleep { ms: 0, naps: 1 };
        }
        let watch = self.next_watch();
        if !self.arm(watch) {
            return Step::Again;
        }
        self.watch = watch;
        self.list_for(fds);
        match watch {
            Watch::Brief => Step::Sleep { ms: BRIEF, naps: NAPS },
            _ if self.has_to_tidy() => Step::Sleep { ms: TIDY, naps: 1 },
            _ => Step::Sleep { ms: 60 * TIDY, naps: 1 },
        }
    }

    /// Does one round of the work; returns whether there was any.
    pub fn round(&mut self) -> bool {
        self.round_for(None)
    }

    /// Does one round of the work; what has come for `reader` goes to it.
    pub fn round_for(&mut self, reader: Option<&mut Reader<'_, '_>>) -> bool {
        let mut busy = self.complete(reader);
        if self.place.its_turn.load(Ordering::Relaxed) && self.place.its_turn.swap(false, Ordering::SeqCst) {
            self.take_all_connects();
        }
        busy |= self.look_at_locals();
        if !self.early.is_empty() {
            self.look_at_early();
        }
        // Connections that are queued meanwhile have their turn in the next round.
        for _ in 0..self.ready.len() {
            let Some(at) = self.ready.pop_front() else { break };
            busy = true;
            self.pump(at);
        }
        self.post_all();
        while let Some(pipe) = self.liars.pop() {
            (busy, self.rest) = (true, true);
            self.end_pipe_with(pipe, "the other side broke the rules", Some(Errno::CONNRESET));
        }
        while let Some(pipe) = self.broken.pop() {
            (busy, self.rest) = (true, true);
            self.pipe_ended(pipe, "the queue pair failed");
        }
        // A base that has ended, or takes more again, carries nothing itself, but has queued connections: then no
        // thread sleeps.
        let more = self.carry_moved() | !self.ready.is_empty();
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
        let at = super::entry::pipe_of(wc.wr_id());
        // A late completion of a queue pair that is gone is dropped.
        if super::entry::tag(&self.pipes, at) != (wc.wr_id() >> 32) as u32 {
            return;
        }
        let Some(entry) = self.pipes.get_mut(at) else { return };
        if let Err(e) = wc.check() {
            return self.completed_badly(at, &e);
        }
        let Some((pipe, device)) = entry.live_parts(&mut self.devices) else { return };
        match pipe.completed(&mut device.pool, wc.wr_id(), wc.byte_len(), wc.imm_data()) {
            None => {
                netacc_stats::page().count(netacc_stats::Counter::ProtocolErrors);
                self.liars.push(at);
            }
            Some(Completion::Sent) => self.feed(),
            Some(Completion::Message(n, head)) => {
                if entry.opened.is_some() {
                    self.hear_of_open(at);
                }
                let frame = if head.brief { self.named(at, head.frame) } else { Some(head.frame) };
                let payload = Payload::Received(n, head.at, head.start, head.len);
                if frame.is_some_and(|frame| !self.messages(at, frame, payload, reader)) {
                    self.liars.push(at);
                }
                let Some(entry) = self.pipes.get_mut(at) else { return };
                let Some((pipe, device)) = entry.live_parts(&mut self.devices) else { return };
                let short = pipe.wants_to_grow();
                if pipe.dealt_with(&mut device.pool, n, head.frame).is_err() {
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
        let Some(entry) = self.pipes.get_mut(at) else { return };
        let Some((pipe, _)) = entry.live_parts(&mut self.devices) else { return };
        crate::log!(Debug, "QP {}: a request failed: {e}", pipe.qp_num());
        entry.error = entry.error.or(Some(e.errno()).filter(|e| *e == Errno::TIMEDOUT));
        self.broken.push(at);
    }

    /// A queue pair may have room again: has the connections that wait for it go on, in turn.
    pub(super) fn unstall(&mut self, at: usize) {
        let Some(entry) = self.pipes.get_mut(at) else { return };
        while let Some(frame) = entry.resets.front().copied() {
            let Some(mut way) = entry.way(&mut self.devices).filter(Way::can_send) else { return };
            if way.send(frame, &[]).is_err() {
                return self.broken.push(at);
            }
            entry.resets.pop_front();
        }
        if !entry.way(&mut self.devices).is_some_and(|way| way.can_send()) {
            return;
        }
        for _ in 0..entry.stalled.len() {
            let Some(entry) = self.pipes.get_mut(at) else { return };
            let Some(c) = entry.stalled.pop_front() else { return };
            if let Some(conn) = self.conns.get_mut(c).filter(|c| c.stalled && c.pipe == at) {
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
    /// duty.
    fn heard(&self, watch: Watch) -> core::ops::Range<usize> {
        let all = self.devices.len();
        match watch {
            Watch::All | Watch::Awake => 0..all,
            Watch::Brief | Watch::Others => self.duty.unwrap_or(all)..all,
        }
    }

    /// To be called before a sleep: everything that may have news is to report it, except what the program's threads
    /// notice while they do the work. False if there is news already.
    fn arm(&mut self, watch: Watch) -> bool {
        if !self.heard(watch).is_empty() {
            self.arm_queues();
        }
        let mut quiet = true;
        for (_, local) in self.locals.each() {
            quiet &= (watch == Watch::Brief && local.is_ours()) || local.arm();
        }
        // Completions that came before the arming have no event.
        quiet && !self.round()
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
        list.push((self.bell, IN, What::Bell));
        list.extend(self.events.iter().map(|events| (events.fd(), IN, What::Events)));
        if self.bases.epoll >= 0 {
            list.push((self.bases.epoll, IN, What::Bases));
        }
        let heard = self.heard(self.watch);
        let devices = self.devices.iter().enumerate().filter(|(n, _)| heard.contains(n));
        list.extend(devices.map(|(n, d)| (d.fd(), IN, What::Device(n))));
        list.extend(self.devices.iter().enumerate().map(|(n, d)| (d.says_fd(), IN, What::Said(n))));
        for (n, local) in self.locals.each() {
            list.push((local.bell(), IN, What::LocalBell(n)));
            // The end of a link is reported once, to each engine that has it.
            if !local.ended {
                list.push((local.link.control_fd(), IN, What::Control(n)));
            }
        }
        let conns = &mut self.conns;
        self.listed.retain(|c| {
            let Some(conn) = conns.get_mut(*c).filter(|conn| conn.listed) else { return false };
            // The connection may have such a descriptor again, when it goes over to a kernel socket after its family's
            // end.
            let Some((fd, events)) = conn.waits_on() else {
                conn.listed = false;
                return false;
            };
            conn.heard = (fd, events);
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
        let watch = core::mem::replace(&mut self.watch, Watch::Awake);
        if watch == Watch::Others && self.complete(None) && core::mem::replace(&mut self.doubted, true) {
            // The thread that has the duty does not do the work: a signal handler may have jumped out of its call. The
            // first time this is only noted, since these may be messages whose mark is still to come.
            self.duty = None;
        }
        let list = core::mem::take(&mut self.sleeps_on);
        for ((fd, _, what), p) in list.iter().zip(fds) {
            if p.revents == 0 || p.fd != *fd {
                continue;
            }
            match *what {
                What::Bell => bells::silence(self.bell),
                What::Events => self.meet_events(),
                What::Bases => self.serve_bases(),
                What::Device(n) => {
                    if let Some(d) = self.devices.get(n) {
                        d.take_events();
                        self.armed = Armed::No;
                    }
                }
                What::Said(n) => self.device_says(n),
                // Another thread may have changed things since: only descriptors that are still the same are read.
                What::LocalBell(n) => {
                    if let Some(local) = self.locals.get(n).filter(|l| l.bell() == *fd) {
                        bells::silence(local.bell());
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
                            conn.ep.hear();
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
        self.looked = now;
        // Where an event has come, a thread that shares a processor with this one may be waiting for the answer to it.
        let news = fds.iter().any(|p| p.revents != 0);
        let often = match (self.has_to_tidy(), news) {
            (true, false) => TIDY / 2,
            (true, true) => 2 * TIDY,
            (false, _) => 50 * TIDY,
        };
        if now.saturating_sub(self.tidied) > often as u64 * 1_000_000 {
            self.tidied = now;
            self.tidy(now);
        }
    }
}
