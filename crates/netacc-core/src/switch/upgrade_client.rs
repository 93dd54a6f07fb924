//! The client's part of the upgrade from kernel TCP to RDMA. See [`upgrade`].

use crate::object::reference::Ref;
use crate::object::socket::{ConnState, Socket, Upgrade};
use crate::switch::to_ring::{number, promoted, switch_to_ring};
use crate::switch::upgrade;
use crate::timeouts;
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use netacc_sys::{raw, time};
use netacc_transport::rdma::engine;
use netacc_transport::rdma::engine::progress;
use netacc_transport::shm::{ShmEndpoint, rendezvous};
use netacc_wire::companion::TOKEN;

const UPGRADE_ANSWER_PAUSE: u64 = time::ns(timeouts::UPGRADE_ANSWER_PAUSE);
const UPGRADE_RETRY_FIRST: u64 = time::ns(timeouts::UPGRADE_RETRY_FIRST);
const UPGRADE_RETRY_LONGEST: u64 = time::ns(timeouts::UPGRADE_RETRY_LONGEST);
const TRIES: u32 = 14;

/// State of a client's side whose request is yet to be sent.
const TO_REQUEST: ConnState = ConnState::Candidate(Upgrade::ToRequest);
const REQUESTED: ConnState = ConnState::Candidate(Upgrade::Requested);

/// Guard of a call that sends without the lock: the connection is not upgraded before its bytes are counted.
pub struct Sending(&'static Socket);

impl Sending {
    pub(crate) fn begin(s: &'static Socket) -> Sending {
        // SeqCst: counted before the kernel is called. A thread that switched the connection before that has ended the
        // kernel's stream, so the kernel accepts no byte.
        s.upgrade.sending.fetch_add(1, Ordering::SeqCst);
        Sending(s)
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.0.upgrade.sending.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Whether the next request is due.
fn is_due(s: &Socket) -> bool {
    s.is(TO_REQUEST) && time::coarse() >= s.upgrade.when.load(Ordering::Relaxed)
}

/// Begins the candidacy of a socket that the kernel connects, or has connected, to another host.
pub fn begin(fd: i32, r: Ref<Socket>, connected: bool, peer: SocketAddr) {
    if connected && !try_upgrade(fd, r) {
        return;
    }
    if !connected {
        // The route is resolved while the kernel connects.
        engine::begin_lookup(peer);
    }
    engine::upgrade_soon();
}

/// Sends the request if it is due, or looks for a route. False: the connection will not be upgraded.
pub fn try_upgrade(fd: i32, r: Ref<Socket>) -> bool {
    let s = r.obj;
    if !is_due(s) {
        return s.is_candidate();
    }
    // No request is sent before the kernel has connected.
    let Some((local, peer)) = netacc_sys::addr::local_of(fd).zip(netacc_sys::addr::peer_of(fd)) else { return true };
    let plain = |a: SocketAddr| SocketAddr::new(rendezvous::destination(a.ip()), a.port());
    if !s.change(TO_REQUEST, REQUESTED) {
        return s.is_candidate();
    }
    s.local.set(plain(local));
    s.peer.set(plain(peer));
    s.upgrade.when.store(time::now(), Ordering::Relaxed);
    match engine::request_upgrade(r.token(), plain(local), plain(peer)) {
        Ok(true) => true,
        Ok(false) => {
            s.upgrade.when.store(time::coarse().saturating_add(UPGRADE_RETRY_FIRST), Ordering::Relaxed);
            s.change(REQUESTED, TO_REQUEST);
            true
        }
        Err(why) => {
            if let Some(e) = s.stats() {
                e.set_reason(why);
            }
            upgrade::give_up(fd, r);
            false
        }
    }
}

/// Waits briefly for an answer that may be in flight, if the call may block. The answer is valid only while nothing
/// else is sent, so a client that sends without a pause would never switch.
pub fn before_send(s: &Socket, nonblock: bool) {
    while s.is(REQUESTED) {
        progress::progress();
        let over = time::now().saturating_sub(s.upgrade.when.load(Ordering::Relaxed)) > UPGRADE_ANSWER_PAUSE;
        if nonblock || over {
            return;
        }
        upgrade::pause();
    }
}

/// Sends the request after a send of the program, with the number of bytes that were sent.
pub fn after_send(fd: i32, r: Ref<Socket>) {
    if is_due(r.obj) {
        try_upgrade(fd, r);
    }
}

/// Schedules another request after one that was refused or could not be sent.
pub fn retry_later(r: Ref<Socket>) {
    let s = r.obj;
    let _g = (s.rx.lock(), s.tx.lock());
    if !r.valid() || !s.is_candidate() {
        return;
    }
    let tries = s.calls.fetch_add(1, Ordering::Relaxed);
    let later = (UPGRADE_RETRY_FIRST << tries.min(20)).min(UPGRADE_RETRY_LONGEST);
    s.upgrade.when.store(time::coarse().saturating_add(later), Ordering::Relaxed);
    s.set_state(if tries >= TRIES { ConnState::Tcp } else { TO_REQUEST });
}

/// Number of bytes that the connection has sent by TCP.
pub fn sent(s: &Socket) -> u64 {
    s.kernel_sent.load(Ordering::Relaxed)
}

/// Switches to `ep` after the server's side was prepared for the byte after `sent`. False: more bytes were sent
/// meanwhile.
pub fn commit(r: Ref<Socket>, sent: u64, token: [u8; TOKEN], ep: &'static ShmEndpoint) -> bool {
    let s = r.obj;
    let fd = {
        let _g = (s.rx.lock(), s.tx.lock());
        // SeqCst: see `Sending`.
        let still = r.valid()
            && s.is(REQUESTED)
            && s.upgrade.sending.load(Ordering::SeqCst) == 0
            && s.kernel_sent.load(Ordering::Relaxed) == sent;
        let Some(fd) = number(s.first_fd(), r).filter(|_| still) else { return false };
        // MSG_MORE holds the token back until the end of our half follows: both are sent in one segment, so that the
        // peer sees both at once.
        let flags = libc::MSG_MORE | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        match raw::send(fd, token.as_ptr(), TOKEN, flags) {
            Ok(TOKEN) => {}
            // All sent bytes have been read, so there is room for the token. If a part of it was sent only, the peer
            // could take that for data: so the connection is reset.
            Ok(_) => {
                upgrade::abort(fd);
                return false;
            }
            Err(_) => return false,
        }
        if !ep.side.take() || !switch_to_ring(fd, r, ep) {
            return false;
        }
        fd
    };
    promoted(fd, s, ep);
    true
}
