//! Keeps the port of a closed listener while connections that it accepted live.
//!
//! In the kernel each of these connections holds the port too, so that a bind(2) without SO_REUSEADDR is refused until
//! the last one ends. An accepted connection in shared memory holds no port. So the kernel's listener socket is kept
//! under a reserved number, no longer listening: it has the address and the options that the kernel considers in a
//! bind.

use crate::fd::table;
use crate::fd::table::Entry;
use crate::object::address::Addr;
use crate::object::socket::{HOLDS_PORT, Socket};
use core::net::SocketAddr;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use netacc_sys::errno::Errno;
use netacc_sys::{addr, raw, reserved_fds};
use netacc_transport::shm::Side;

/// A port that is kept.
struct Held {
    /// The socket that holds it (descriptor + 1); 0: the entry is free.
    fd: AtomicI32,
    /// Where it listened, and the domain of its socket.
    local: Addr,
    domain: AtomicI32,
    /// Number of connections that need the port.
    count: AtomicU32,
}

impl Held {
    const fn free() -> Held {
        Held { fd: AtomicI32::new(0), local: Addr::new(), domain: AtomicI32::new(0), count: AtomicU32::new(0) }
    }
}

netacc_sys::tables! {
    /// The kept ports. Programs rarely close listeners whose connections go on; beyond this number the port is simply
    /// released.
    static HELD: [Held; 16] = [const { Held::free() }; 16];
}

/// Called before the last number of a listener that no other process shares is closed.
#[cold]
pub fn keep(listener: &Socket) {
    let Some(local) = listener.local.get() else { return };
    let Some(place) = HELD.iter().find(|h| h.fd.compare_exchange(0, -1, Ordering::AcqRel, Ordering::Relaxed).is_ok())
    else {
        return;
    };
    place.local.set(local);
    place.domain.store(listener.domain(), Ordering::Relaxed);
    // Counts this thread itself, since connections may end while others are still being counted.
    place.count.store(1, Ordering::Release);
    table::each(0, usize::MAX, |_, e| {
        if let Entry::Socket(r) = e
            && let Some(_pin) = r.pin()
            && accepted_at(r.obj, listener.domain(), local)
            && !r.obj.set(HOLDS_PORT, true)
        {
            place.count.fetch_add(1, Ordering::AcqRel);
        }
    });
    if place.count.load(Ordering::Acquire) > 1
        && let Some(fd) = stay_behind(listener.first_fd(), local)
    {
        place.fd.store(fd + 1, Ordering::Release);
    }
    drop_one(place);
}

/// Keeps the kernel's listener socket under a reserved number, no longer listening, and returns the number.
fn stay_behind(fd: i32, local: SocketAddr) -> Option<i32> {
    // The number may refer to another file by now, if the listener was opened under it and closed under another one.
    let is_it = raw::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Ok(1)
        && addr::local_of(fd).is_some_and(|a| a == local);
    let ours = if is_it { reserved_fds::copy(fd).ok()? } else { return None };
    let _ = raw::shutdown(ours, libc::SHUT_RDWR);
    // The shutdown has released a port that the kernel chose, though getsockname(2) still shows it. A port that the
    // program chose stays.
    match addr::with(local, |p, n| raw::bind(ours, p, n)) {
        Ok(()) | Err(Errno::INVAL) => Some(ours),
        Err(_) => {
            reserved_fds::close(ours);
            None
        }
    }
}

/// Whether a connection with this local address is one of a listener.
fn is_of(listener: SocketAddr, own: SocketAddr) -> bool {
    let ip = listener.ip().to_canonical();
    own.port() == listener.port() && (ip.is_unspecified() || ip == own.ip().to_canonical())
}

fn accepted_at(s: &Socket, domain: i32, listener: SocketAddr) -> bool {
    s.is_shm()
        && s.domain() == domain
        && s.local.get().is_some_and(|own| is_of(listener, own))
        && s.endpoint().is_some_and(|ep| ep.side.link().side() == Side::Server)
}

/// Called when a connection that needs a kept port ends.
#[cold]
pub fn left(connection: &Socket) {
    let Some(own) = connection.local.get() else { return };
    let of_it = |h: &&Held| {
        h.fd.load(Ordering::Acquire) != 0
            && h.domain.load(Ordering::Relaxed) == connection.domain()
            && h.local.get().is_some_and(|listener| is_of(listener, own))
    };
    if let Some(place) = HELD.iter().find(of_it) {
        drop_one(place);
    }
}

fn drop_one(place: &Held) {
    let less = |n: u32| n.checked_sub(1);
    if place.count.fetch_update(Ordering::AcqRel, Ordering::Acquire, less) == Ok(1) {
        let fd = place.fd.swap(0, Ordering::AcqRel);
        if fd > 0 {
            reserved_fds::close(fd - 1);
        }
    }
}
