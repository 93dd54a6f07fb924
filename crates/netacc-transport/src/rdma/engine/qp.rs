//! What an engine knows of a queue pair.

use crate::num;
use crate::rdma::engine::companions::companion::Companion;
use crate::rdma::engine::failed::Failover;
use crate::rdma::engine::state::{State, machine};
use crate::rdma::engine::table::Table;
use crate::rdma::{Buffer, Device, MsgPath, QpConn};
use crate::timeouts;
use alloc::collections::{BTreeMap, VecDeque};
use core::net::IpAddr;
use netacc_sys::errno::Errno;
use netacc_sys::time;
use netacc_verbs::CmId;
use netacc_wire::frame::Frame;

/// Most connections of a queue pair that are refused or over, and of which it has not been told: with more of them it
/// gives us no room to tell.
pub(super) const RESETS: usize = 4096;
pub(super) const QP_CONNECT: u64 = time::ns(timeouts::QP_CONNECT);

/// How far a queue pair has come.
#[derive(Debug)]
pub(super) enum Stage {
    /// Client's host: the connection manager is not there yet.
    Wanted,
    /// Server's host: a client has requested the connection, and it is not made yet.
    Requested,
    Resolving(CmId, usize),
    Routing(CmId),
    Connecting(QpConn),
    Up(QpConn),
    /// The queue pair has failed; its connections go on by TCP.
    FailedOver(Failover),
    /// It was taken out of the stage of this name, by code that sets the next one or ends the queue pair.
    Taken(&'static str),
}

machine! {
    Stage { Wanted, Requested, Resolving, Routing, Connecting, Up, FailedOver; other Stage::Taken(from) => *from }
    * -> Wanted: "a connect needs a queue pair",
    * -> Requested: "a client asks for one",
    Wanted -> Resolving: "the connection manager is there and is asked for the address",
    Resolving -> Routing: "the address is known",
    Routing -> Connecting: "the route is known, and the queue pair is made",
    Requested -> Connecting: "the queue pair is made",
    Connecting -> Up: "it is accepted",
    Up -> FailedOver: "it has failed and has a companion connection",
}

/// The bytes that belong to a message.
#[derive(Clone, Copy, Debug)]
pub(super) enum Payload<'a> {
    /// In this buffer of the queue pair's device: the buffer, the offset in it, the address in memory, and the number
    /// of bytes.
    Received(Buffer, usize, *const u8, usize),
    /// The bytes came by TCP.
    Bytes(&'a [u8]),
}

impl Payload<'_> {
    /// Its first `len` bytes, or all if there are fewer.
    pub fn first(self, len: usize) -> Self {
        match self {
            Payload::Received(n, at, start, all) => Payload::Received(n, at, start, len.min(all)),
            Payload::Bytes(bytes) => Payload::Bytes(bytes.get(..len).unwrap_or(bytes)),
        }
    }

    /// The bytes after its first `len`.
    pub fn after(self, len: usize) -> Self {
        match self {
            Payload::Received(n, at, start, all) => {
                let len = len.min(all);
                Payload::Received(n, at + len, start.wrapping_add(len), all - len)
            }
            Payload::Bytes(bytes) => Payload::Bytes(bytes.get(len..).unwrap_or_default()),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Payload::Received(_, _, _, len) => *len,
            Payload::Bytes(bytes) => bytes.len(),
        }
    }

    pub fn start(&self) -> *const u8 {
        match self {
            Payload::Received(_, _, start, _) => *start,
            Payload::Bytes(bytes) => bytes.as_ptr(),
        }
    }
}

/// The silence of a queue pair.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Keepalive {
    /// When the silence was first noticed (ns).
    pub since: u64,
    /// Number of messages that had come until then, modulo 65,536.
    pub received: u16,
    /// Time (ns) at which the other side was probed; 0: it was not.
    pub probed_at: u64,
}

/// Sends of a queue pair that do not complete.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CompletionStall {
    /// What [`QpConn::awaited_completion`](crate::rdma::QpConn::awaited_completion) said last.
    pub awaited: Option<u32>,
    /// Since when it has said that (ns).
    pub since: u64,
}

impl CompletionStall {
    /// Notes what the queue pair says now. Returns how long (ns) sends have been under way without one completing.
    pub fn look(&mut self, awaited: Option<u32>, now: u64) -> u64 {
        if awaited.is_none() || awaited != self.awaited {
            *self = CompletionStall { awaited, since: now };
        }
        now.saturating_sub(self.since)
    }
}

/// The last connection that was opened on a queue pair, until the other side is known to have dealt with that (client's
/// host).
#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    /// Index of the connection.
    pub conn: usize,
    /// The other side has dealt with it once it has dealt with this many messages; `None`: not known, since the opening
    /// may not have gone out.
    pub after: Option<u64>,
    /// Set when a connect that goes by another queue pair waits for that.
    pub awaited: bool,
    /// Set once the other side was probed.
    pub reply_requested: bool,
}

/// A queue pair, from the first question for its route to its end.
#[derive(Debug)]
pub(super) struct QpRecord {
    stage: Stage,
    pub device: usize,
    /// The route whose connections it carries (client's host).
    pub route: Option<usize>,
    /// The TCP port of the listener (server's host).
    pub port: u16,
    /// Our address and the other side's, once it is connected.
    pub ips: Option<(IpAddr, IpAddr)>,
    /// The TCP connection beside it.
    pub companion: Companion,
    /// The other side's silence: its beginning, the number of messages received then, and whether the other side was
    /// probed.
    pub keepalive: Keepalive,
    /// Whether its sends complete.
    pub completion_stall: CompletionStall,
    pub conns: BTreeMap<u16, usize>,
    /// See [`order`](super::order).
    pub opened: Option<Opened>,
    /// Connections that wait for room, in turn.
    pub stalled: VecDeque<usize>,
    /// Connections that have ended, which has to be reported to the other side.
    pub resets: VecDeque<Frame>,
    pub idle_since: u64,
    /// Set once it has carried a connection.
    pub used: bool,
    /// The error with which its connections ended, if that is known and not the other side's end.
    pub error: Option<Errno>,
    /// Until then (ns) it gets no further connection: its companion connection has ended, and so may have the other
    /// side's process.
    pub doubted: u64,
}

impl QpRecord {
    pub fn new(stage: Stage, device: usize, route: Option<usize>, port: u16) -> QpRecord {
        QpRecord {
            stage,
            device,
            route,
            port,
            ips: None,
            companion: Companion::None,
            keepalive: Keepalive::default(),
            completion_stall: CompletionStall::default(),
            conns: BTreeMap::new(),
            opened: None,
            stalled: VecDeque::new(),
            resets: VecDeque::new(),
            idle_since: time::now(),
            used: false,
            error: None,
            doubted: 0,
        }
    }

    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    pub fn stage_mut(&mut self) -> &mut Stage {
        &mut self.stage
    }

    /// Takes the stage out, for a change that needs what is in it; [`QpRecord::set_stage`] follows.
    pub fn take_stage(&mut self) -> Stage {
        let from = self.stage.name();
        core::mem::replace(&mut self.stage, Stage::Taken(from))
    }

    pub fn set_stage(&mut self, to: Stage) {
        let (route, port) = (self.route, self.port);
        self.stage.change(to, format_args!("QP of route {route:?}, port {port}"));
    }

    /// The queue pair's device, if it has one already.
    pub fn device_if_known(&self) -> Option<usize> {
        matches!(self.stage, Stage::Connecting(_) | Stage::Up(_)).then_some(self.device)
    }

    /// The descriptors of its companion connection.
    pub fn companion_fds(&self) -> impl Iterator<Item = i32> {
        let failed = match &self.stage {
            Stage::FailedOver(failed) => Some(failed.stream.fd()),
            _ => None,
        };
        failed.into_iter().chain(self.companion.fd())
    }

    pub fn is_failed_over(&self) -> bool {
        matches!(self.stage, Stage::FailedOver(_))
    }

    pub fn is_up(&self) -> bool {
        matches!(self.stage, Stage::Up(_))
    }

    /// Whether its connections can go on when this process has ended.
    pub fn can_hand_off(&self) -> bool {
        match self.stage {
            Stage::Up(_) => self.companion.is_hoped_for(),
            Stage::FailedOver(_) => true,
            _ => false,
        }
    }

    /// Whether it can have a further connection.
    pub fn takes_more(&self) -> bool {
        self.is_up() && (self.doubted == 0 || time::now() >= self.doubted)
    }

    /// The path by which messages go, if it is connected.
    pub fn path<'a>(&'a mut self, devices: &'a mut [Device]) -> Option<MsgPath<'a>> {
        match &mut self.stage {
            Stage::Up(qp_conn) => Some(MsgPath::Qp(qp_conn, &mut devices.get_mut(self.device)?.pool)),
            Stage::FailedOver(failed) => Some(MsgPath::Companion(&mut failed.stream)),
            _ => None,
        }
    }

    /// Copies a part of a message's payload; false if the payload is shorter.
    pub fn copy(&mut self, devices: &mut [Device], payload: Payload<'_>, skip: usize, to: &mut [u8]) -> bool {
        match payload {
            Payload::Received(n, at, ..) => {
                devices.get(self.device).is_some_and(|device| device.pool.read(n, at + skip, to))
            }
            Payload::Bytes(bytes) => {
                let part = bytes.get(skip..).and_then(|rest| rest.get(..to.len()));
                part.map(|part| to.copy_from_slice(part)).is_some()
            }
        }
    }

    /// The queue pair and its device, if it is connected.
    pub fn parts<'a>(&'a mut self, devices: &'a mut [Device]) -> Option<(&'a mut QpConn, &'a mut Device)> {
        match &mut self.stage {
            Stage::Up(qp_conn) => Some((qp_conn, devices.get_mut(self.device)?)),
            _ => None,
        }
    }

    /// The queue pair and its device, also while it is being connected.
    pub fn live_parts<'a>(&'a mut self, devices: &'a mut [Device]) -> Option<(&'a mut QpConn, &'a mut Device)> {
        match &mut self.stage {
            Stage::Up(qp_conn) | Stage::Connecting(qp_conn) => Some((qp_conn, devices.get_mut(self.device)?)),
            _ => None,
        }
    }
}

/// The upper half of the numbers of a queue pair's work requests: 24 bits for its place, 8 for the use of that place.
pub(super) fn tag(qps: &Table<QpRecord>, at: usize) -> u32 {
    (qps.generation(at) & 0xff) << 24 | num::small(at)
}

/// The queue pair that a work request belongs to.
pub(super) fn qp_of(wr_id: u64) -> usize {
    (wr_id >> 32) as usize & 0xff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_stall_only_while_none_of_them_completes() {
        let mut stall = CompletionStall::default();
        assert_eq!(stall.look(Some(7), 100), 0);
        assert_eq!(stall.look(Some(7), 150), 50);
        assert_eq!(stall.look(Some(8), 160), 0);
        assert_eq!(stall.look(None, 170), 0);
        assert_eq!(stall.look(None, 180), 0);
        assert_eq!(stall.look(Some(8), 200), 0);
        assert_eq!(stall.look(Some(8), 230), 30);
    }
}
