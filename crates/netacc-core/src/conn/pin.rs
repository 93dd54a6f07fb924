//! References to a socket object, and the end of the connection with the last of them.

use crate::conn::held_port;
use crate::listen::heirs;
use crate::object::reference::Ref;
use crate::object::socket::{HANDED, HOLDS_PORT, KEEPABLE, LINGER_RESET, ListenState, PLACEHOLDER, SHARED, Socket};
use core::sync::atomic::{AtomicU64, Ordering};
use netacc_sys::errno::{Answer, Fail};
use netacc_sys::time::{Deadline, Until};
use netacc_transport::Endpoint;

/// A reference held by a sleeping call.
#[derive(Debug)]
pub struct Pin {
    sock: Ref<Socket>,
}

impl Pin {
    /// The pinned socket.
    pub fn sock(&self) -> Ref<Socket> {
        self.sock
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        put(self.sock.obj);
    }
}

/// Drops a reference; the last one ends the connection. True if no kernel socket is left under the number, so that the
/// fd cache may keep it.
#[inline]
pub fn put(s: &'static Socket) -> bool {
    s.drop_ref() && retire(s)
}

fn retire(s: &'static Socket) -> bool {
    crate::epoll::unlink::forget_socket(s);
    // Both direction locks: a call that looked the object up before finishes first, and a later one sees the new
    // generation and reports EBADF.
    let rx = s.rx.lock();
    let tx = s.tx.lock();
    let shm = s.is_shm();
    // Decided under the locks: a thread that puts a kernel socket under the number holds them, and finds the socket
    // retired from here on.
    let cached = shm && s.flags() & (KEEPABLE | PLACEHOLDER | SHARED | HANDED) == KEEPABLE | PLACEHOLDER;
    if let Some(e) = s.stats() {
        e.close();
    }
    s.end_life();
    heirs::done(s);
    s.upgrade.held_by.leave();
    crate::fork::ownership::unshare_if_alone(s);
    let others = s.has(SHARED) || s.endpoint().is_some_and(|ep| shm && ep.side.link().is_inherited());
    let ep = s.take_endpoint();
    let listener = s.listener();
    let was = s.end_state().unwrap_or(ListenState::Dormant);
    if let Some(ep) = ep {
        if !shm {
            // The connection was offered for promotion and the offer was not accepted.
            ep.side.withdraw();
            ep.close(false);
        } else if others {
            ep.leave_shared();
        } else {
            ep.close(s.has(LINGER_RESET));
        }
    }
    // Counted after the last access to the ring: the process that is alone then goes on from the published words.
    s.holders.leave();
    drop((rx, tx));
    s.kept.release();
    s.pair_name.release();
    if s.has(HOLDS_PORT) {
        held_port::left(s);
    }
    if let Some(l) = listener {
        if l.many.load(Ordering::Relaxed) == 0 {
            held_port::keep(s);
        }
        l.close(was);
    }
    s.release();
    cached
}

/// When a call ends that begins now, with a limit (SO_RCVTIMEO, SO_SNDTIMEO) of `limit_ns`; 0: never.
pub(crate) fn deadline(limit_ns: u64) -> Deadline {
    if limit_ns == 0 { Deadline::Never } else { Deadline::after(limit_ns as i64) }
}

/// What a call keeps from its first wait to its end, however often its connection changes the path meanwhile and the
/// call is made anew there.
#[derive(Debug, Default)]
pub struct Waiting {
    pin: Option<Pin>,
    until: Option<Deadline>,
}

impl Waiting {
    /// Pins the socket: a close in another thread takes effect when the call returns.
    #[cold]
    pub(crate) fn hold(&mut self, r: Ref<Socket>) -> Answer<()> {
        if self.pin.is_none() {
            self.pin = r.pin();
        }
        if self.pin.is_some() { Ok(()) } else { Err(Fail::BADF) }
    }

    /// The socket, if it is pinned.
    pub(crate) fn held(&self) -> Option<Ref<Socket>> {
        self.pin.as_ref().map(Pin::sock)
    }

    /// The time at which the call ends: `limit` (SO_RCVTIMEO or SO_SNDTIMEO, in ns) after it first asked.
    pub(crate) fn until(&mut self, limit: &AtomicU64) -> Deadline {
        *self.until.get_or_insert_with(|| deadline(limit.load(Ordering::Relaxed)))
    }

    /// The time at which the call ends, if it has asked for it.
    pub(crate) fn end(&self) -> Until {
        self.until.map_or(Until::NONE, Until::from)
    }
}

impl Ref<Socket> {
    /// Keeps the object from being retired while a call sleeps on it: close(2) in another thread then
    /// takes effect when the call returns, as in the kernel.
    pub fn pin(self) -> Option<Pin> {
        if !self.obj.add_ref_if_used() {
            return None;
        }
        let pin = Pin { sock: self };
        // A recycled object has another generation; dropping the pin gives its reference back.
        self.valid().then_some(pin)
    }
}
