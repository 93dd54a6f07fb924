//! Connects that wait at a listener which this process leaves while other processes have it.
//!
//! The kernel's queue belongs to the listener and not to a process, so another process accepts what waits there. This
//! process therefore takes each such connect, connects to the kernel's listener in the client's stead, gives that
//! socket what the client has written so far, and passes it to the client as the socket on which its connection goes on
//! (see
//! [`netacc_transport::shm`]'s `offer_switch`). The client need not do anything for that: its process may be busy elsewhere, or gone.
//!
//! A connect of another user's process, and one for which the kernel's queue has no room, stays as it is: its client makes it
//! once more at its next call (see [`crate::switch::redispatch`]).

use crate::switch::{pair, relay};
use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{addr, raw};
use netacc_transport::Endpoint;
use netacc_transport::shm::segment::SERVER_WITHDRAWN;
use netacc_transport::shm::slots::SLOTS;
use netacc_transport::shm::{Link, ShmEndpoint};
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};

/// These links of a listener take no further connects: those that wait there go to the kernel's listener in the order in which
/// they were made, if this process can see to that, or are made once more by their clients.
pub(crate) fn hand_on(links: impl Iterator<Item = &'static Link> + Clone) {
    let mut count = 0;
    for link in links.clone() {
        let Some(seg) = link.segment() else { continue };
        // SeqCst: a client pushes and then looks at this word; this process marks and then drains.
        seg.header().server.store(SERVER_WITHDRAWN, Ordering::SeqCst);
        count += 1;
    }
    let mut able = true;
    // A client that goes on and on is not waited for.
    for _ in 0..SLOTS * count {
        let waits = |link: &'static Link| Some((link.segment()?.front_time()?, link));
        let Some((_, link)) = links.clone().filter_map(waits).min_by_key(|(when, _)| *when) else { break };
        let Some(slot) = link.pop() else { break };
        let Some(ep) = link.endpoint(slot as usize).filter(|ep| slot != 0 && !ep.is_live()) else { continue };
        let done = if able && link.trust_is_mutual() { to_kernel(link, ep) } else { Err(Errno::NOTCONN) };
        match done {
            Ok(()) => netacc_log::log!(
                Info,
                "listener: a connect that waited here goes to the kernel's queue, for another process"
            ),
            Err(e) => {
                // Where one found no room, or a client that takes nothing in, the next one would wait in vain as well.
                able = able && e != Errno::AGAIN && e != Errno::TIMEDOUT;
                ep.stir_peer();
            }
        }
    }
}

/// One connect goes to the kernel's listener. On failure its client may still make it again, or it is reset.
fn to_kernel(link: &'static Link, ep: &'static ShmEndpoint) -> Result<()> {
    let open = &link.segment().and_then(|seg| seg.slot(ep.slot_index())).ok_or(Errno::NOTCONN)?.open;
    let (Some(client), Some(server)) = (open.address(0), open.address(1)) else { return Err(Errno::INVAL) };
    if open.remote_engine() != 0 || client.is_ipv4() != server.is_ipv4() || !ep.has_windows() {
        return Err(Errno::INVAL);
    }
    let generation = open.generation.load(Ordering::Relaxed);
    let local_end = tcp_socket(server)?;
    let remote = tcp_socket(server).and_then(|remote| bind(&remote, client).map(|()| remote));
    // The decision comes first: a connection that is not needed after all would be one more that a server accepts.
    let done = remote.and_then(|remote| {
        if !ep.take() {
            ep.never_mind(generation);
            return Ok(());
        }
        connect_at_once(&remote, server).inspect_err(|_| ep.untake())?;
        if !ep.begin(generation) {
            return Err(Errno::NOMEM);
        }
        go_on(ep, &local_end, remote).inspect_err(|_| ep.close(true))
    });
    pair::discard(local_end);
    done
}

/// The connection goes on over `peer_end`, whose other end waits at the kernel's listener. `local_end` stands for that end.
fn go_on(ep: &'static ShmEndpoint, local_end: &OwnedFd, peer_end: OwnedFd) -> Result<()> {
    ep.readiness();
    if ep.is_moving() {
        // The client's program had to have a kernel socket before anybody accepted: a relay joins the two.
        ep.await_kernel();
        ep.accept_switch()?;
        let done = ep
            .drain_rest(local_end, &peer_end)
            .and_then(|all| if all { relay::start(peer_end.as_raw_fd(), ep.kernel_fd()) } else { Ok(()) });
        pair::discard(peer_end);
        done?;
    } else {
        ep.offer_switch(local_end, peer_end)?;
    }
    ep.let_go();
    Ok(())
}

/// A TCP socket of the family of `a` that does not block.
fn tcp_socket(a: SocketAddr) -> Result<OwnedFd> {
    let domain = if a.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let fd = raw::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)?;
    #[allow(unsafe_code)]
    // SAFETY: the kernel has just opened it, and nobody else knows the number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Gives the socket the client's address. Its port is another one, since the client holds its own.
fn bind(fd: &OwnedFd, client: SocketAddr) -> Result<()> {
    let fd = fd.as_raw_fd();
    let late = |on| raw::setsockopt_int(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, on);
    let _ = late(1);
    addr::with(SocketAddr::new(client.ip(), 0), |p, len| raw::bind(fd, p, len))?;
    let _ = late(0);
    Ok(())
}

/// On this host the kernel answers within the call, unless the listener's queue is full (`EAGAIN`).
fn connect_at_once(fd: &OwnedFd, server: SocketAddr) -> Result<()> {
    let fd = fd.as_raw_fd();
    match addr::with(server, |p, len| raw::connect(fd, p, len)) {
        Ok(()) => return Ok(()),
        Err(Errno::INPROGRESS) => {}
        Err(e) => return Err(e),
    }
    let mut p = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    if raw::ppoll(&raw mut p, 1, &raw mut now, core::ptr::null())? == 0 {
        return Err(Errno::AGAIN);
    }
    match raw::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_ERROR)? {
        0 => Ok(()),
        e => Err(Errno(e)),
    }
}
