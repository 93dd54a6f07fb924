//! Upgrade: the switch of a live connection from kernel TCP to RDMA. This file and `upgrade_client.rs` are the socket
//! layer's part; the engine exchanges the messages (`engine/upgrade_client.rs` at the client, `engine/mux/upgrade.rs`
//! at the server).
//!
//! The client's engine sends a request with the number of bytes that were sent by TCP so far. As soon as the server's
//! program has read exactly these, its side is [prepared](prepare): no byte of the client is in flight, and the answer
//! is a token. A client that has sent nothing else meanwhile [switches](super::upgrade_client::commit): it sends the
//! token by TCP, ends its half there and writes to the ring from then on; a client that has sent more bytes repeats the
//! request later. So the kernel's stream of a prepared side continues in one of two ways (`next`): with the token and
//! the end, and then that side switches as well; or with anything else, and then the client has not switched.
//!
//! The token proves that the requesting client has the connection: any process can name the addresses, but no other one
//! can write to the stream. As in a promotion, the end of the stream after it marks the byte where the ring goes on;
//! the program reads neither of them.
//!
//! All decisions are made with both direction locks held, by the program's threads or by an engine, which also holds
//! its own lock.

use crate::fd::table;
use crate::fd::table::Entry;
use crate::object::reference::Ref;
use crate::object::socket::{ConnState, Path, Socket, Upgrade};
use crate::switch::to_ring::{decided, number, promoted, switch_to_ring};
use crate::timeouts;
use crate::wait::call_signals::CallSignals;
use crate::wait::sleep;
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use netacc_sys::errno::{Answer, Errno, Fail, Result};
use netacc_sys::time::Deadline;
use netacc_sys::{raw, time};
use netacc_transport::host::UpgradeAnswer;
use netacc_transport::rdma::engine;
use netacc_transport::rdma::engine::progress;
use netacc_transport::shm::ShmEndpoint;
use netacc_transport::{Endpoint, WaitSet};
use netacc_wire::companion::TOKEN;
use rustix::rand::{GetRandomFlags, getrandom};

const UPGRADE_CANDIDATE: u64 = time::ns(timeouts::UPGRADE_CANDIDATE);
const UPGRADE_DECISION: u64 = time::ns(timeouts::UPGRADE_DECISION);

/// State of a server's side that waits for its client's request.
const AWAITED: ConnState = ConnState::Candidate(Upgrade::AwaitRequest);
const PREPARED: ConnState = ConnState::Candidate(Upgrade::Prepared);

/// Switches a candidate to its ring if that is possible now. True: it is on its ring.
pub fn advance(fd: i32, r: Ref<Socket>) -> bool {
    let s = r.obj;
    if s.is(PREPARED) {
        complete_server(fd, r);
    }
    if !s.is_shm() {
        // Waits for an engine that may be switching the connection.
        drop(s.rx.lock());
    }
    s.is_shm()
}

/// Cancels an upgrade. True: it was too late, and the connection is on its ring.
pub fn give_up(fd: i32, r: Ref<Socket>) -> bool {
    let s = r.obj;
    let end = time::now().saturating_add(UPGRADE_DECISION);
    let mut asked = false;
    loop {
        complete_server(fd, r);
        let ep = {
            let _g = (s.rx.lock(), s.tx.lock());
            if let Some(switched) = decided(r) {
                return switched;
            }
            let prepared = s.endpoint().filter(|_| s.is(PREPARED));
            let Some(ep) = prepared.filter(|_| time::now() < end) else {
                s.set_state(ConnState::Tcp);
                if let Some(ep) = prepared {
                    // It is unknown whether the client has switched, and a wrong guess would corrupt the stream: so the
                    // connection is reset.
                    leave_place(s, ep);
                    abort(fd);
                    netacc_log::log!(
                        Warn,
                        "fd {fd}: the other host does not say which path the connection takes; it is reset"
                    );
                }
                return false;
            };
            ep
        };
        // The client either answers that it stays, or its token is in flight.
        if !core::mem::replace(&mut asked, true) {
            engine::cancel(ep);
        }
        progress::progress();
        pause();
    }
}

/// Resets the connection, on both sides.
pub(super) fn abort(fd: i32) {
    let unspecified = [0u64; 2];
    let _ = raw::connect(fd, unspecified.as_ptr().cast(), size_of_val(&unspecified) as u32);
}

/// Sleeps a moment so that another thread can proceed.
pub(super) fn pause() {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 200_000 };
    let _ = raw::ppoll(core::ptr::null_mut(), 0, &raw mut ts, core::ptr::null());
}

/// To be called before the process ends: decides all prepared upgrades, since the kernel would reset a connection with
/// an unread token.
pub fn decide_all() {
    table::each(0, usize::MAX, |fd, e| {
        if let Entry::Socket(r) = e
            && r.obj.is(PREPARED)
        {
            give_up(fd, r);
        }
    });
}

/// How the kernel's stream of a prepared side continues.
#[derive(PartialEq, Eq)]
enum Next {
    /// Nothing has been received yet that shows how the stream continues.
    Nothing,
    /// The stream continues with the token and the end.
    Token,
    /// The stream continues with anything else.
    Other,
}

/// Whether the peer has ended its half of the kernel's stream; `Err`: the kernel socket has a pending error.
fn ended(fd: i32) -> core::result::Result<bool, ()> {
    let events = raw::events_now(fd, libc::POLLRDHUP);
    if events & (libc::POLLERR | libc::POLLNVAL) != 0 { Err(()) } else { Ok(events & libc::POLLRDHUP != 0) }
}

/// Determines how the stream continues; called under the `rx` lock.
fn next(fd: i32, s: &Socket) -> Next {
    // The end is checked before the received bytes are looked at: if the end is there, all bytes before it are visible.
    let Ok(over) = ended(fd) else { return Next::Other };
    let mut seen = [0u8; TOKEN + 1];
    let n = match raw::recv(fd, seen.as_mut_ptr(), seen.len(), libc::MSG_PEEK | libc::MSG_DONTWAIT) {
        Ok(n) => n,
        Err(Errno::AGAIN | Errno::INTR) => return Next::Nothing,
        Err(e) => {
            s.upgrade.error.store(e.0, Ordering::Relaxed);
            return Next::Other;
        }
    };
    let token = s.upgrade.token();
    match seen.get(..n) {
        Some([]) | None => Next::Other,
        // The end follows the token, perhaps after the check above.
        Some(all) if all == token.as_slice() => {
            if over || ended(fd) == Ok(true) {
                Next::Token
            } else {
                Next::Nothing
            }
        }
        Some(part) if token.starts_with(part) && !over => Next::Nothing,
        Some(_) => Next::Other,
    }
}

/// Server: switches a prepared connection if its client has switched.
fn complete_server(fd: i32, r: Ref<Socket>) {
    let s = r.obj;
    let ep = {
        let _g = (s.rx.lock(), s.tx.lock());
        if !r.valid() || !s.is(PREPARED) {
            return;
        }
        let (Some(fd), Some(ep)) = (number(fd, r), s.endpoint()) else { return };
        match next(fd, s) {
            Next::Nothing => return,
            Next::Other => return stay(s, ep),
            Next::Token => {}
        }
        let mut token = [0u8; TOKEN];
        let read = raw::recv(fd, token.as_mut_ptr(), TOKEN, libc::MSG_DONTWAIT);
        // No other thread reads the kernel socket, and an engine that drops the connection takes the locks first.
        if read != Ok(TOKEN) || !ep.side.take() {
            return stay(s, ep);
        }
        if !switch_to_ring(fd, r, ep) {
            return;
        }
        ep
    };
    promoted(fd, s, ep);
    // Bytes that the client has sent by the queue pair may wait for this switch.
    ep.stir_peer();
}

/// Ends the preparation of a connection, which stays on TCP. Called under both direction locks.
fn stay(s: &Socket, ep: &'static ShmEndpoint) {
    s.set_state(AWAITED);
    leave_place(s, ep);
}

/// Releases the prepared endpoint. Called under both direction locks.
fn leave_place(s: &Socket, ep: &'static ShmEndpoint) {
    s.drop_endpoint();
    ep.side.withdraw();
    ep.close(false);
}

/// Whether bytes in the kernel belong to the program's stream, and not to a token; called under the `rx` lock.
fn may_read(fd: i32, s: &Socket) -> bool {
    !s.is(PREPARED) || next(fd, s) == Next::Other
}

/// To be called before a candidate with a peer on another host reads from the kernel, under the `rx` lock.
pub fn before_read(fd: i32, s: &Socket) -> Result<()> {
    if !may_read(fd, s) {
        return Err(Errno::AGAIN);
    }
    // Reports an error that the kernel returned to a look of ours.
    match s.upgrade.error.swap(0, Ordering::Relaxed) {
        0 => Ok(()),
        e => Err(Errno(e)),
    }
}

/// Server: waits for bytes on behalf of a call that has found nothing to read. The kernel's own blocking call would
/// consume the token.
pub fn wait(fd: i32, r: Ref<Socket>) -> Answer<()> {
    let s = r.obj;
    let deadline = match s.rcvtimeo.load(Ordering::Relaxed) {
        0 => Deadline::Never,
        ns => Deadline::after(ns as i64),
    };
    let mut signals = CallSignals::new(core::ptr::null());
    loop {
        progress::progress();
        if !s.is_candidate() || advance(fd, r) {
            return signals.leave(deadline);
        }
        let mut set = WaitSet::new();
        set.add(fd, libc::POLLIN | libc::POLLRDHUP);
        match sleep::sleep(&mut set, progress::ProgressScope::Bystander, deadline, &mut signals, |_| {}) {
            Ok(0) if deadline.passed() => return Err(Fail::AGAIN),
            Ok(_) if set.revents(0) == 0 => {}
            Ok(_) => {
                let there = {
                    let _g = s.rx.lock();
                    number(fd, r) != Some(fd) || may_read(fd, s)
                };
                if there {
                    return Ok(());
                }
                // A part of the token was received, and the rest is in flight.
                if !advance(fd, r) {
                    pause();
                }
            }
            Err(Fail::INTR) => signals.interrupted(deadline)?,
            Err(e) => return Err(e),
        }
    }
}

/// To be called after a read from the kernel was counted: an engine may wait for that number.
#[inline]
pub fn has_read(s: &Socket) {
    let wanted = s.upgrade.wanted.load(Ordering::Relaxed);
    if wanted != 0 && s.kernel_read.load(Ordering::Relaxed) >= wanted {
        s.upgrade.wanted.store(0, Ordering::Relaxed);
        progress::progress();
    }
}

/// Server: whether no request for the connection came in time, so that it stays with the kernel.
pub fn expired(fd: i32, r: Ref<Socket>) -> bool {
    let s = r.obj;
    if !s.is(AWAITED) || s.calls.fetch_add(1, Ordering::Relaxed) % 64 != 63 {
        return false;
    }
    time::coarse() > s.upgrade.when.load(Ordering::Relaxed) && !give_up(fd, r)
}

/// Server: notes that a connection from another host was accepted, for which a request may come.
pub fn accepted(s: &Socket) {
    s.upgrade.when.store(time::coarse().saturating_add(UPGRADE_CANDIDATE), Ordering::Relaxed);
}

/// Server: the connection that a client on another host requests to upgrade, if this process has it.
pub fn find(client: SocketAddr, server: SocketAddr) -> Option<Ref<Socket>> {
    let mut found = None;
    table::each(0, usize::MAX, |_, e| {
        // A connection that can no longer be upgraded is found as well, so that the client gets its answer at once.
        if let Entry::Socket(r) = e
            && matches!(r.obj.path(), Path::Tcp | Path::Shm)
            && r.obj.peer.get() == Some(client)
            && r.obj.local.get() == Some(server)
            && (found.is_none() || r.obj.is_candidate())
        {
            found = Some(r);
        }
    });
    found
}

/// Server: prepares the connection, of which the client has sent `sent` bytes, for a switch to `ep`.
pub fn prepare(r: Ref<Socket>, sent: u64, ep: &'static ShmEndpoint) -> UpgradeAnswer {
    const ESTABLISHED: u8 = 1;
    let s = r.obj;
    if s.kernel_read.load(Ordering::Relaxed) < sent && r.valid() && (s.is(AWAITED) || s.is(PREPARED)) {
        s.upgrade.wanted.store(sent, Ordering::Relaxed);
        return UpgradeAnswer::NotYet;
    }
    let _g = (s.rx.lock(), s.tx.lock());
    let is_free = r.valid() && s.is(AWAITED);
    let Some(fd) = number(s.first_fd(), r).filter(|_| is_free) else { return UpgradeAnswer::No };
    s.upgrade.wanted.store(0, Ordering::Relaxed);
    accepted(s);
    let mut info = [0u8; 8];
    let mut len = info.len() as u32;
    let state = raw::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut len);
    let [state, ..] = if state.is_ok() { info } else { [0; 8] };
    let mut token = [0u8; TOKEN];
    if s.kernel_read.load(Ordering::Relaxed) != sent
        || state != ESTABLISHED
        || getrandom(&mut token, GetRandomFlags::empty()) != Ok(TOKEN)
    {
        return UpgradeAnswer::No;
    }
    s.upgrade.set_token(token);
    s.set_endpoint(ep);
    s.set_state(PREPARED);
    UpgradeAnswer::Ready(token)
}

/// Server: undoes the preparation after the client has answered that it did not switch to `ep`.
pub fn unprepare(r: Ref<Socket>, ep: &'static ShmEndpoint) {
    let s = r.obj;
    let _g = (s.rx.lock(), s.tx.lock());
    if r.valid() && s.is(PREPARED) && s.endpoint().is_some_and(|e| core::ptr::eq(e, ep)) {
        stay(s, ep);
    }
}
