//! The queue pairs of an engine, and the devices that they are on.

use crate::rdma::engine::admission::Silent;
use crate::rdma::engine::companions::attempt::{Attempt, Port};
use crate::rdma::engine::companions::companion::Companion;
use crate::rdma::engine::limits::Limits;
use crate::rdma::engine::qp::{QpRecord, RESETS, Stage, tag};
use crate::rdma::engine::status::EngineStatus;
use crate::rdma::engine::table::Table;
use crate::rdma::{Device, MsgPath, QpConn, port_of};
use crate::timeouts;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use netacc_sys::errno::Errno;
use netacc_sys::{raw, reserved_fds, time};
use netacc_verbs::{CmId, Error, EventChannel, Result};
use netacc_wire::frame::{Frame, Kind};

/// Most queue pairs of this process.
pub(super) const MAX_QPS: usize = 4096;
/// Time (ms) that the network is asked for a neighbour, at each try. The kernel misses an answer that comes while it
/// asks, and looks again when the time is over: so the first time is short.
pub(super) const RESOLVE: [u32; 3] = [100, 300, 1_000];
/// A message that the other side does not confirm is sent again after 4.096 microseconds times two to the power of
/// this, which is half a second, and at the seventh time in vain the queue pair fails.
const ACK_TIMEOUT: u8 = 17;
/// Time (ns) for which "no device leads there" and silence are believed, which cost more to find out.
pub(super) const UNREACHED: u64 = 30_000_000_000;
/// Number of queue pairs that a list has room for from the beginning.
const BATCH: usize = 16;
const QP_END_AFTER_COMPANION: u64 = time::ns(timeouts::QP_END_AFTER_COMPANION);

/// The queue pairs of an engine, and the devices that they are on.
#[derive(Debug)]
pub(super) struct Qps {
    pub table: Table<QpRecord>,
    pub devices: Vec<Device>,
    /// The connection manager's event channel, once it is needed: see [`manager`](super::manager).
    pub events: Option<EventChannel>,
    /// When (ns) the event channel could not be made; 0: it was made, or nobody has asked for it.
    pub unmanaged: u64,
    /// Queue pairs with messages that are put together, and not posted yet.
    unposted: Vec<usize>,
    /// Queue pairs that have failed.
    pub broken: Vec<usize>,
    /// Queue pairs whose other side breaks the rules.
    pub violators: Vec<usize>,
    /// Queue pairs that had failed and have lost their companion connection: nothing of them can go on.
    pub lost: Vec<usize>,
    /// Set when more buffers are needed, which the thread is to register: see [`Qps::grow`].
    pub short: bool,
    /// The number of the engine.
    pub index: usize,
    pub limits: Limits,
    status: &'static EngineStatus,
}

impl Qps {
    /// No queue pair yet, for engine `index`.
    pub fn new(index: usize, limits: Limits, status: &'static EngineStatus) -> Qps {
        Qps {
            table: Table::default(),
            devices: Vec::new(),
            events: None,
            unmanaged: 0,
            unposted: Vec::with_capacity(BATCH),
            broken: Vec::with_capacity(BATCH),
            violators: Vec::new(),
            lost: Vec::new(),
            short: false,
            index,
            limits,
            status,
        }
    }

    /// The path by which a queue pair's messages go, if it is connected.
    pub fn path(&mut self, at: usize) -> Option<MsgPath<'_>> {
        self.table.get_mut(at)?.path(&mut self.devices)
    }

    /// A queue pair and its device, if it is connected.
    pub fn parts(&mut self, at: usize) -> Option<(&mut QpConn, &mut Device)> {
        self.table.get_mut(at)?.parts(&mut self.devices)
    }

    /// A queue pair and its device, also while it is being connected.
    pub fn live_parts(&mut self, at: usize) -> Option<(&mut QpConn, &mut Device)> {
        self.table.get_mut(at)?.live_parts(&mut self.devices)
    }

    pub fn set_stage(&mut self, at: usize, stage: Stage) {
        if let Some(qp) = self.table.get_mut(at) {
            qp.set_stage(stage);
        }
    }

    /// Notes that more registered memory is needed.
    pub fn is_short(&mut self) {
        if !core::mem::replace(&mut self.short, true) {
            self.status.ring();
        }
    }

    /// Posts the messages of a queue pair at the end of the round: other connections may put their messages behind it.
    pub fn post_later(&mut self, at: usize) {
        if self.unposted.contains(&at) {
            return;
        }
        // Progress allocates nothing, so a full list is posted at once.
        if self.unposted.len() == self.unposted.capacity() {
            self.post_all();
        }
        self.unposted.push(at);
    }

    /// Sends all that was put together, in the order in which it was: connects are to arrive as they were made.
    pub fn post_all(&mut self) {
        let mut unposted = core::mem::take(&mut self.unposted);
        for at in unposted.drain(..) {
            if self.path(at).is_some_and(|mut path| path.post().is_err()) {
                self.broken.push(at);
            }
        }
        // The list's memory is used again.
        self.unposted = unposted;
    }

    /// Tells the other side of connections that are over. False: there was no room to tell it of all, or the queue pair
    /// failed.
    pub fn send_resets(&mut self, at: usize) -> bool {
        let Some(qp) = self.table.get_mut(at) else { return false };
        while let Some(frame) = qp.resets.front().copied() {
            let Some(mut path) = qp.path(&mut self.devices).filter(MsgPath::can_send) else { return false };
            if path.send(frame, &[]).is_err() {
                self.broken.push(at);
                return false;
            }
            qp.resets.pop_front();
        }
        true
    }

    /// Refuses the connection that `frame` is about: there is none, or there is to be none.
    pub fn refuse(&mut self, at: usize, frame: Frame) {
        let reset = Frame { kind: Kind::Reset, window: 0, credits: 0, acked: 0, next: 0, ..frame };
        self.reset_later(at, reset);
    }

    /// Sends a reset when there is room.
    pub fn reset_later(&mut self, at: usize, frame: Frame) {
        if let Some(qp) = self.table.get_mut(at) {
            if qp.resets.len() >= RESETS {
                // The other side goes on asking, and gives us no room to answer.
                return self.violators.push(at);
            }
            qp.resets.push_back(frame);
        }
    }

    /// Queue pairs of clients on other hosts for which `are` is true.
    pub fn clients(&self, are: impl Fn(&QpRecord) -> bool) -> Vec<Silent> {
        let clients = self.table.each().filter(|(_, e)| e.route.is_none() && are(e));
        clients.filter_map(|(id, e)| Some(Silent { id, ip: e.ips?.1, since: e.idle_since })).collect()
    }

    /// The device that an identifier is on, which is opened if it is the first there.
    pub fn device_of(&mut self, id: &CmId) -> Result<usize> {
        if let Some(n) = self.devices.iter().position(|d| d.has(id)) {
            return Ok(n);
        }
        let device = Device::open(id, self.limits.sizes(), self.limits.comp_vector, self.index)?;
        netacc_log::log!(Info, "RDMA thread {}: opened device {}", self.index, device.name());
        self.devices.push(device);
        self.status.devices.add(1);
        Ok(self.devices.len() - 1)
    }

    /// Makes the queue pair of an identifier that is on a device, which is opened if it is the first there. It is to be
    /// connected next.
    pub fn make(&mut self, id: CmId, at: usize) -> Result<&mut QpConn> {
        let device = self.device_of(&id)?;
        let tag = tag(&self.table, at);
        let qp_conn = QpConn::new(id, self.devices.get_mut(device).ok_or(Error::NoDevice)?, tag)?;
        let qp = self.table.get_mut(at).ok_or(Error::NoDevice)?;
        qp.ips = qp_conn.local_ip().zip(qp_conn.peer_ip());
        qp.device = device;
        qp.set_stage(Stage::Connecting(qp_conn));
        match qp.stage_mut() {
            Stage::Connecting(qp_index) => Ok(qp_index),
            _ => Err(Error::NoDevice),
        }
    }

    /// To be called when we have accepted the connection of a queue pair.
    pub fn is_connected(&mut self, at: usize) {
        let Some(qp) = self.table.get_mut(at) else { return };
        match qp.take_stage() {
            Stage::Connecting(qp_conn) => qp.set_stage(Stage::Up(qp_conn)),
            stage => qp.set_stage(stage),
        }
        self.count_up(at);
    }

    /// Whether queue pairs wait for the event channel.
    pub fn wants_manager(&self) -> bool {
        self.events.is_none() && self.table.each().any(|(_, e)| matches!(e.stage(), Stage::Wanted))
    }

    /// Whether the event channel cannot be made, as far as is known.
    pub fn is_unmanaged(&self, now: u64) -> bool {
        self.events.is_none() && self.unmanaged != 0 && now.saturating_sub(self.unmanaged) < UNREACHED
    }

    /// Client's host: requests the route of a queue pair to `dest` from the connection manager.
    pub fn resolve(&mut self, at: usize, dest: SocketAddr) -> Result<()> {
        let Some(events) = &self.events else { return Err(Error::NoDevice) };
        let port = port_of(dest.port()).ok_or(Error::NoDevice)?;
        let id = CmId::create(events, u64::from(tag(&self.table, at)))?;
        // Not every kernel can set this.
        let _ = id.set_ack_timeout(ACK_TIMEOUT);
        let [first, ..] = RESOLVE;
        id.resolve_addr(None, SocketAddr::new(dest.ip(), port), first)?;
        self.set_stage(at, Stage::Resolving(id, 1));
        Ok(())
    }

    /// Our address and the other side's, for each queue pair that waits for its companion.
    pub fn awaiting(&self) -> Vec<(IpAddr, IpAddr)> {
        self.table.each().filter(|(_, e)| e.companion.awaits().is_some()).filter_map(|(_, e)| e.ips).collect()
    }

    /// There will be no companion connection: nothing is kept for it.
    pub fn drop_companion(&mut self, at: usize) {
        let Some(qp) = self.table.get_mut(at) else { return };
        qp.companion.close();
        if let Some((qp_conn, device)) = qp.parts(&mut self.devices) {
            qp_conn.keep_nothing(&mut device.pool);
        } else if qp.is_failed_over() {
            self.lost.push(at);
        }
    }

    /// The companion connection of a queue pair is there.
    pub fn companion_ready(&mut self, at: usize, fd: i32) {
        let Some(qp) = self.table.get_mut(at) else { return reserved_fds::close(fd) };
        match qp.stage_mut() {
            // It was waited for.
            Stage::FailedOver(failed) => {
                failed.stream.attach(fd);
                qp.companion = Companion::None;
            }
            _ => qp.companion = Companion::Ready(fd),
        }
    }

    /// Client's host: the companion connection that is being made.
    pub fn attempt(&mut self, at: usize) -> Option<&mut Attempt> {
        match &mut self.table.get_mut(at)?.companion {
            Companion::Connecting(attempt) => Some(attempt),
            _ => None,
        }
    }

    /// Client's host: our address, and where the companion is to be connected.
    pub fn destination(&self, at: usize) -> Option<(IpAddr, SocketAddr)> {
        let qp = self.table.get(at)?;
        let (ours, theirs) = qp.ips?;
        let Companion::Connecting(attempt) = &qp.companion else { return None };
        let port = if attempt.port == Port::Own { qp.port } else { attempt.chosen };
        Some((ours, SocketAddr::new(theirs, port)))
    }

    /// Whether the other side's process seems to be gone, as its companion connection has it: the kernel ends that
    /// first, and the connection manager says so only after a while, in which a connection would begin that nobody
    /// takes.
    pub fn seems_gone(&mut self, at: usize) -> bool {
        let Some(qp) = self.table.get_mut(at) else { return true };
        let Companion::Ready(fd) = qp.companion else { return false };
        let mut byte = 0u8;
        let said = raw::recv(fd, &raw mut byte, 1, libc::MSG_DONTWAIT | libc::MSG_PEEK);
        let gone = matches!(said, Ok(0)) || said.is_err_and(|e| !matches!(e, Errno::AGAIN | Errno::INTR));
        if gone {
            qp.doubted = time::now().saturating_add(QP_END_AFTER_COMPANION);
            self.drop_companion(at);
        }
        gone
    }

    /// Registers more memory for connections that have run short of it. Done by the engine thread, since registering
    /// takes its time, and allocates.
    pub fn grow(&mut self) {
        for device in &mut self.devices {
            device.pool.more();
        }
        let all: Vec<usize> = self.table.each().map(|(at, _)| at).collect();
        for at in all {
            if self.parts(at).is_some_and(|(qp_conn, device)| qp_conn.grow(&mut device.pool).is_err()) {
                self.broken.push(at);
            }
        }
        for device in &mut self.devices {
            if let Some(why) = device.pool.take_refusal() {
                netacc_log::log!(Info, "RDMA device {}: cannot register more memory for now: {why}", device.name());
            }
        }
    }

    /// Done once in a while: gives back receives and regions that have no use.
    pub fn shrink(&mut self) {
        let all: Vec<usize> = self.table.each().map(|(at, _)| at).collect();
        for at in all {
            if self.parts(at).is_some_and(|(qp_conn, device)| qp_conn.tick(&mut device.pool).is_err()) {
                self.broken.push(at);
            }
        }
        for device in &mut self.devices {
            device.pool.tick();
        }
    }
}

/// Asks the connection manager once more for the way to `dest`, after `tries` tries.
pub(super) fn retry_resolve(id: CmId, tries: usize, dest: SocketAddr) -> Result<Stage> {
    let port = port_of(dest.port()).ok_or(Error::NoDevice)?;
    let time = RESOLVE.get(tries).copied().unwrap_or(1_000);
    id.resolve_addr(None, SocketAddr::new(dest.ip(), port), time)?;
    Ok(Stage::Resolving(id, tries + 1))
}
