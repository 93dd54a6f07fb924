//! One connection: from its ring to the queue pair, and back.

use crate::limits::MESSAGES_PER_PASS;
use crate::num;
use crate::rdma::MsgPath;
use crate::rdma::engine::mux::state::{RxState, Sched, TxState};
use crate::rdma::engine::mux::upgrade_pending::PendingUpgrade;
use crate::rdma::engine::state::State;
use crate::shm::{ShmEndpoint, end_at_close, reset_at_close};
use crate::{Endpoint, Iov, Shut};
use alloc::collections::VecDeque;
use alloc::vec;
use netacc_sys::errno::Errno;
use netacc_sys::raw;
use netacc_wire::frame::{ADDRESSES, Brief, Frame, Kind, WINDOW};

/// Number of delivered bytes after which the peer is told of them by a message of their own.
const WINDOW_UPDATE: u32 = WINDOW / 2;
/// Most bytes that go into the ring between two looks whether its reader has left it: when the reader leaves, its
/// socket has to hold what was in the ring, and these bytes.
const PIECE: usize = 32 * 1024;
/// Number of bytes for which a look into a short buffer first is worthwhile.
pub(in crate::rdma::engine) const SHORT: usize = 96;

/// A connection that this engine carries.
#[derive(Debug)]
pub(in crate::rdma::engine) struct Conn {
    /// Our side of the ring. With a `kernel` socket it is not ours any more: another connection may have its place.
    pub ep: &'static ShmEndpoint,
    /// The kernel socket that took the ring's place (private descriptor), or -1: the program handed its side on to a
    /// process that has no ring.
    pub kernel: i32,
    /// While it is listed, since a descriptor of its own can wake it: the descriptor and the events on which the thread
    /// sleeps for it, or did when it slept last.
    pub slept_on: Option<(i32, i16)>,
    /// Index of its link, and its place there.
    pub local: usize,
    pub slot: usize,
    /// The queue pair.
    pub qp: usize,
    /// Its name on the queue pair.
    pub id: u16,
    pub generation: u32,
    /// What the other side has been told, what it has told, and the connection's turn: changed by setters alone.
    tx: TxState,
    rx: RxState,
    sched: Sched,
    /// The addresses of both ends, for [`TxState::Opening`].
    addresses: [u8; ADDRESSES],
    /// Set while the connection is still on kernel TCP.
    pub upgrade: Option<PendingUpgrade>,
    /// Number of bytes that may still be sent.
    pub credit: u32,
    /// Number of bytes that have reached the reader here and that the peer has not been told of.
    pub delivered: u32,
    /// Bytes that found no room in the ring.
    pub pending: VecDeque<u8>,
}

/// The source of the bytes that a connection sends.
#[derive(Debug)]
pub(in crate::rdma::engine) enum Source<'a, 'b> {
    /// Its ring, or the kernel socket that took the ring's place.
    Ring,
    /// A program's buffers.
    Program(&'a mut Iov<'b>),
}

/// How sending went.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::rdma::engine) enum Sent {
    /// There is nothing more for now.
    All,
    /// The queue pair has no room.
    Stalled,
    /// No buffer to send from is free.
    Starved,
    /// Others are served first.
    More,
    /// The program's side was reset: the other side has been told.
    Reset,
    /// The queue pair failed.
    Broken,
}

impl Conn {
    /// A connection of the queue pair at `qp`, by the program's side `ep` on the link at `local`. A client's connection
    /// has no `name` yet, and `addresses` that are to be sent first unless it comes from kernel TCP.
    pub fn new(
        ep: &'static ShmEndpoint,
        local: usize,
        qp: usize,
        name: Option<(u16, u32)>,
        addresses: Option<[u8; ADDRESSES]>,
    ) -> Conn {
        let (id, generation) = name.unwrap_or_default();
        Conn {
            ep,
            kernel: -1,
            slept_on: None,
            local,
            slot: ep.side.slot_index(),
            qp,
            id,
            generation,
            tx: if addresses.is_some() { TxState::Opening } else { TxState::Unnamed },
            rx: if name.is_some() { RxState::Open } else { RxState::Unheard },
            sched: Sched::Idle,
            addresses: addresses.unwrap_or([0; ADDRESSES]),
            upgrade: None,
            credit: WINDOW,
            delivered: 0,
            pending: VecDeque::new(),
        }
    }

    pub fn tx(&self) -> TxState {
        self.tx
    }

    pub fn rx(&self) -> RxState {
        self.rx
    }

    pub fn sched(&self) -> Sched {
        self.sched
    }

    pub fn set_tx(&mut self, to: TxState) {
        if self.tx != to {
            let (id, generation) = (self.id, self.generation);
            self.tx.change(to, format_args!("connection {id}/{generation}"));
        }
    }

    pub fn set_rx(&mut self, to: RxState) {
        if self.rx != to {
            let (id, generation) = (self.id, self.generation);
            self.rx.change(to, format_args!("connection {id}/{generation}"));
        }
    }

    pub fn set_sched(&mut self, to: Sched) {
        debug_assert!(self.sched == to || Sched::transition(self.sched.name(), to.name()).is_some());
        self.sched = to;
    }

    /// A frame of this generation has come.
    pub fn note_heard(&mut self) {
        if self.rx == RxState::Unheard {
            self.set_rx(RxState::Open);
        }
    }

    /// The other side's direction has ended.
    pub fn end_rx(&mut self) {
        if !self.rx.is_over() {
            self.set_rx(RxState::Ended);
        }
    }

    pub(in crate::rdma::engine) fn frame(&mut self, kind: Kind) -> Frame {
        if self.tx == TxState::Unnamed {
            self.set_tx(TxState::Open);
        }
        let frame = self.next_frame(kind);
        self.delivered -= frame.window;
        frame
    }

    /// What [`Conn::frame`] gives next.
    fn next_frame(&self, kind: Kind) -> Frame {
        // A larger window does not fit into a brief head; the next frame tells the rest.
        let most = if matches!(kind, Kind::Data | Kind::Part) { Brief::WINDOW } else { u32::MAX };
        let window = self.delivered.min(most);
        Frame { kind, credits: 0, large: false, conn: self.id, generation: self.generation, window, acked: 0, next: 0 }
    }

    /// Gives bytes to the program here, as many as there is room for; the rest waits, copied by `copy` from the given
    /// offset on. False: nobody reads any more.
    pub fn give(&mut self, bytes: *const u8, len: usize, copy: impl FnOnce(usize, &mut [u8]) -> bool) -> bool {
        let mut done = 0;
        if self.pending.is_empty() {
            let Some(n) = self.write(bytes, len) else { return false };
            done = n;
        }
        if done < len {
            let mut rest = vec![0; len - done];
            if copy(done, &mut rest) {
                self.pending.extend(rest);
            }
        }
        true
    }

    /// Writes into the ring. `None`: nobody reads any more.
    fn write(&mut self, bytes: *const u8, len: usize) -> Option<usize> {
        let mut asked = false;
        let mut done = 0;
        while done < len {
            let v =
                libc::iovec { iov_base: bytes.wrapping_add(done).cast_mut().cast(), iov_len: (len - done).min(PIECE) };
            let mut iov = Iov::one(&v);
            let tried = match self.kernel {
                -1 => self.ep.try_write(&mut iov),
                fd => send_some(fd, &mut iov),
            };
            done += v.iov_len - iov.left();
            match tried {
                // The ring is closed: on the wire these bytes would be answered by a reset, and so they are here.
                Ok(_) if self.kernel < 0 && self.ep.side.is_dead() => return None,
                Ok(_) => {}
                // The reader that was asked for room tells us of it; it may have made some just before.
                Err(Errno::AGAIN) if self.kernel < 0 && !asked && self.ep.want_room() => asked = true,
                Err(Errno::AGAIN) => break,
                Err(_) => return None,
            }
        }
        self.delivered = self.delivered.saturating_add(num::small(done));
        Some(done)
    }

    /// Moves what waited into the ring, and the end after it. False: nobody reads any more.
    pub(in crate::rdma::engine) fn give_pending(&mut self) -> bool {
        while !self.pending.is_empty() {
            let (front, _) = self.pending.as_slices();
            let (p, len) = (front.as_ptr(), front.len());
            let Some(n) = self.write(p, len) else { return false };
            self.pending.drain(..n);
            if n == 0 {
                return true;
            }
        }
        if self.rx == RxState::Ended {
            self.set_rx(RxState::Given);
            match self.kernel {
                -1 => self.ep.shutdown(Shut::Write),
                fd => {
                    end_at_close(fd);
                    let _ = raw::shutdown(fd, libc::SHUT_WR);
                }
            }
        }
        true
    }

    /// Sends what may be sent now, for as long as it is its turn.
    pub fn send(&mut self, path: &mut MsgPath<'_>, from: &mut Source<'_, '_>) -> Sent {
        for _ in 0..MESSAGES_PER_PASS {
            if !path.can_add() {
                return Sent::Stalled;
            }
            if self.tx == TxState::Opening {
                let frame = self.frame(Kind::Open);
                self.set_tx(TxState::Open);
                if path.add(frame, &self.addresses).is_err() {
                    return Sent::Broken;
                }
                continue;
            }
            if self.tx == TxState::Ended || self.credit == 0 {
                // Nothing is read from the ring now, which would find a reset.
                let reset = self.kernel < 0 && self.ep.observed().is_dead();
                return if reset { self.send_reset(path) } else { self.send_window(path) };
            }
            let got = self.send_bytes(path, from);
            match got {
                Ok(Some(true)) => {}
                Ok(Some(false)) => return Sent::Starved,
                Ok(None) => {
                    let frame = self.frame(Kind::Fin);
                    self.set_tx(TxState::Ended);
                    if path.add(frame, &[]).is_err() {
                        return Sent::Broken;
                    }
                }
                Err(Errno::AGAIN) => return self.send_window(path),
                Err(Errno::IO) => return Sent::Broken,
                Err(_) => return self.send_reset(path),
            }
        }
        Sent::More
    }

    /// The frame for the `n` bytes that were read from a source that has `there` bytes, or from a socket, where `n`
    /// fills the `room` or not. If the next frame may have to wait this one is a part as well, since otherwise nobody
    /// would hear of what the program writes meanwhile. If the program writes nothing, `send_final_acks` says so.
    fn frame_of(&mut self, n: usize, there: usize, room: usize, path: &MsgPath<'_>) -> Frame {
        let left = if there == usize::MAX { n == room } else { n < there };
        let part = left || self.credit == 0 || !path.can_send_two();
        self.set_tx(if part { TxState::Part } else { TxState::Open });
        self.frame(if part { Kind::Part } else { Kind::Data })
    }

    /// Sends one message of bytes: returns whether there was a buffer for it; `None` at the end of the stream. `EIO`:
    /// the queue pair failed.
    fn send_bytes(&mut self, path: &mut MsgPath<'_>, from: &mut Source<'_, '_>) -> Result<Option<bool>, Errno> {
        let inline = path.payload_inline().min(self.credit as usize).min(SHORT);
        let there = match from {
            Source::Program(bytes) => bytes.left(),
            Source::Ring if self.kernel < 0 => self.ep.unread(),
            Source::Ring => usize::MAX,
        };
        if there <= inline {
            return self.send_short(path, from, there, inline);
        }
        let brief = self.tx.is_named() && path.can_be_brief(&self.next_frame(Kind::Data));
        let Some((place, start, room)) = path.take(there.min(self.credit as usize), brief) else {
            // This is slow, but better than waiting for ever.
            return if path.is_dry() { self.send_short(path, from, there, inline) } else { Ok(Some(false)) };
        };
        let room = room.min(self.credit as usize);
        match self.read(from, start, room) {
            Ok(0) => {
                path.give_back(place);
                Ok(None)
            }
            Err(e) => {
                path.give_back(place);
                Err(e)
            }
            Ok(n) => {
                self.credit -= num::small(n);
                let known = self.tx.is_named();
                let frame = self.frame_of(n, there, room, path);
                path.send_placed(frame, place, n, known).map(|()| Some(true)).map_err(|_| Errno::IO)
            }
        }
    }

    /// Sends one message of bytes without a buffer.
    fn send_short(
        &mut self,
        path: &mut MsgPath<'_>,
        from: &mut Source<'_, '_>,
        there: usize,
        room: usize,
    ) -> Result<Option<bool>, Errno> {
        let mut bytes = [0u8; SHORT];
        let n = self.read(from, bytes.as_mut_ptr(), room)?;
        if n == 0 {
            return Ok(None);
        }
        self.credit -= num::small(n);
        let frame = self.frame_of(n, there, room, path);
        let bytes = bytes.get(..n).unwrap_or_default();
        path.add(frame, bytes).map(|()| Some(true)).map_err(|_| Errno::IO)
    }

    /// Reads from the source. `EAGAIN`: there is nothing now; 0: nothing will come any more.
    pub(in crate::rdma::engine) fn read(
        &self,
        from: &mut Source<'_, '_>,
        to: *mut u8,
        room: usize,
    ) -> Result<usize, Errno> {
        let v = libc::iovec { iov_base: to.cast(), iov_len: room };
        match from {
            Source::Program(bytes) if bytes.left() == 0 => Err(Errno::AGAIN),
            // The program's call itself reports memory that cannot be read.
            Source::Program(bytes) => Some(bytes.copy_into(&mut Iov::one(&v))).filter(|n| *n > 0).ok_or(Errno::AGAIN),
            Source::Ring if self.kernel < 0 => self.ep.try_read(&mut Iov::one(&v), false),
            Source::Ring => raw::recv(self.kernel, to, room, libc::MSG_DONTWAIT),
        }
    }

    /// Whether it has sent all that is in its ring, and can go on.
    pub fn may_send_past(&self) -> bool {
        let begun = self.upgrade.is_none() && self.tx.sends_bytes() && self.kernel < 0;
        begun && !self.sched.is_stalled() && self.credit > 0 && self.ep.unread() == 0
    }

    /// What wakes it besides its channel: a descriptor and its events.
    pub fn waits_on(&self) -> Option<(i32, i16)> {
        // The program's side has followed, though the ring is not empty: what comes goes to the socket already.
        if self.kernel < 0 && !self.pending.is_empty() && self.ep.side.has_accepted() {
            return Some((self.ep.passed.kernel_fd(), libc::POLLOUT));
        }
        match (self.kernel, self.ep.liveness.peer_to_poll(&self.ep.side)) {
            (-1, -1) => None,
            (-1, peer_liveness) => Some((peer_liveness, libc::POLLIN)),
            (fd, _) => {
                // For a connection that is cut only its end is awaited, once it has been given everything.
                let waits = match self.tx {
                    TxState::Cut => self.rx != RxState::Given,
                    tx => tx == TxState::Ended || self.sched.is_stalled() || self.credit == 0,
                };
                let read = if waits { 0 } else { libc::POLLIN };
                let write = if self.pending.is_empty() { 0 } else { libc::POLLOUT };
                Some((fd, read | write))
            }
        }
    }

    /// Whether the thread does not sleep on something that can wake it.
    pub fn is_unheard(&self) -> bool {
        let waits = self.slept_on.zip(self.waits_on());
        waits.is_some_and(|((fd, events), (now, wanted))| wanted & if now == fd { !events } else { !0 } != 0)
    }

    /// Follows the program's side, if that went over to a kernel socket. False: the connection is lost.
    pub fn accept_switch(&mut self) -> bool {
        if self.kernel >= 0 || !self.ep.must_switch() {
            return true;
        }
        if self.ep.connect.is_orphaned(&self.ep.side) {
            return false;
        }
        match self.ep.accept_switch() {
            Ok(None) => true,
            Ok(Some(fd)) => {
                let Ok(ours) = netacc_sys::reserved_fds::copy(fd) else { return false };
                self.ep.subscribe(0);
                self.ep.let_go();
                // The bytes that we still have to give are lost with us, which is no end of the stream.
                if self.rx != RxState::Given {
                    reset_at_close(ours);
                }
                self.kernel = ours;
                true
            }
            Err(_) => false,
        }
    }

    /// Whether nothing of what the program here writes goes out by the queue pair any more, or none of it does yet.
    pub(in crate::rdma::engine) fn is_off_qp(&self) -> bool {
        self.upgrade.is_some() || self.tx.is_over()
    }

    fn send_reset(&mut self, path: &mut MsgPath<'_>) -> Sent {
        let frame = self.frame(Kind::Reset);
        if path.add(frame, &[]).is_err() { Sent::Broken } else { Sent::Reset }
    }

    fn send_window(&mut self, path: &mut MsgPath<'_>) -> Sent {
        if self.delivered < WINDOW_UPDATE {
            return Sent::All;
        }
        let frame = self.frame(Kind::Window);
        if path.add(frame, &[]).is_err() { Sent::Broken } else { Sent::All }
    }
}

/// Sends as much as the kernel takes.
fn send_some(fd: i32, iov: &mut Iov<'_>) -> Result<usize, Errno> {
    let Some((p, n)) = iov.first() else { return Ok(0) };
    let done = raw::send(fd, p, n, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)?;
    iov.skip(done);
    Ok(done)
}
