//! Passing on the queued connects of a listener that this process closes while other processes have it.
//!
//! The kernel's queue belongs to the listener and not to a process, so another process accepts the connections that
//! wait there. This process therefore takes each queued connect, connects to the kernel's listener on the client's
//! behalf, sends the bytes that the client has written so far by that socket, and passes it to the client as the socket
//! on which its connection goes on (see `offer_switch` in [`netacc_transport::shm`]). The client need not act for that:
//! its process may be busy or have ended.
//!
//! A connect of another user's process, or one for which the kernel's queue has no room, is left alone: its client
//! makes it once more at its next call (see [`crate::switch::redispatch`]).

use crate::conn::kernel_queue;
use crate::object::kernel_turn::precedes_count;
use crate::object::listener::{Listener, announce_servers, note_all, readable, tcp_ready};
use crate::object::socket::{NONBLOCK, Socket};
use crate::switch::{by_tcp, pair, relay};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{Ordering, fence};
use netacc_sys::errno::{Errno, Result};
use netacc_sys::{addr, raw};
use netacc_transport::Endpoint;
use netacc_transport::shm::enough;
use netacc_transport::shm::segment::{Leave, Segment};
use netacc_transport::shm::slots::SLOTS;
use netacc_transport::shm::{Link, ServerState, ShmEndpoint};
use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Closes these links of a listener for further connects. The queued ones go to the kernel's listener in the order in
/// which they were made, if this process can pass them on, or are made once more by their clients.
pub(crate) fn hand_on(links: impl Iterator<Item = &'static Link> + Clone) {
    let mut count = 0;
    for link in links.clone() {
        let Some(seg) = link.segment() else { continue };
        seg.set_server(ServerState::Withdrawn);
        count += 1;
    }
    let mut able = true;
    let mut left = Vec::new();
    // A client that goes on and on is not waited for.
    for _ in 0..SLOTS * count {
        let waits = |link: &'static Link| Some((link.segment()?.front_time()?, link));
        let Some((_, link)) = links.clone().filter_map(waits).min_by_key(|(when, _)| *when) else { break };
        let Some(slot) = link.pop() else { break };
        let Some(ep) = link.endpoint(slot as usize).filter(|ep| slot != 0 && !ep.side.is_live()) else { continue };
        let done = if able && link.trust_is_mutual() { to_kernel(link, ep) } else { Err(Errno::NOTCONN) };
        match done {
            Ok(()) => netacc_log::log!(
                Info,
                "listener: a connect that waited here goes to the kernel's queue, for another process"
            ),
            Err(e) => {
                // If one connect found no room, or its client accepts no socket, the next one would wait in vain as
                // well.
                able = able && e != Errno::TIMEDOUT;
                left.push(ep);
            }
        }
    }
    // Clients wait for this before they make a connect, or one of these once more: it would be accepted before those that
    // are passed on.
    links.filter_map(Link::segment).for_each(|seg| seg.set_server(ServerState::HandedOn));
    left.into_iter().for_each(ShmEndpoint::stir_peer);
}

/// Notes which connects wait in shared memory at a listener that an operator takes off.
fn note_waiting(l: &Listener) {
    let _g = l.lock.lock();
    for (link, segment) in l.links().filter_map(|link| Some((link, link.segment()?))) {
        link.queue.filled_when_off.store(segment.pushed(), Ordering::Relaxed);
    }
}

/// Tells the clients that this process is about to leave the listener, or that it stays for now.
pub(crate) fn announce(l: &Listener, leaves: bool) {
    let (from, to) = match leaves {
        true => (ServerState::Open, ServerState::Leaving),
        false => (ServerState::Leaving, ServerState::Open),
    };
    let _g = l.lock.lock();
    l.links().filter_map(Link::segment).filter(|seg| seg.server() == from).for_each(|seg| seg.set_server(to));
}

/// Whether connects that were [noted](note_waiting) have to be accepted before the listener `fd` is left to the kernel. They
/// wait in shared memory, and connections in the kernel's queue, which are younger, would come before them. While the caller
/// `is_patient`, everything that waits at this moment is noted, and clients at the doors count as well. So do the connects of
/// other users, since nobody can hand them on, and a client may make no call by which it would make them once more; but nobody
/// waits for long for what another user's process writes.
pub(crate) fn must_stay(l: &Listener, fd: i32, is_patient: bool) -> bool {
    if is_patient {
        note_waiting(l);
    }
    let noted = |link: &'static Link| {
        let filled = link.queue.filled_when_off.load(Ordering::Relaxed);
        let taken = link.segment().filter(|_| link.has_queued()).map(Segment::connects_taken);
        taken.is_some_and(|taken| precedes_count(taken, filled))
    };
    let has_younger = tcp_ready(fd);
    let _g = l.lock.lock();
    let would_reorder = has_younger && (l.links().any(noted) || (is_patient && l.doors().any(readable)));
    would_reorder || (is_patient && l.links().any(|link| !link.trust_is_mutual() && noted(link)))
}

/// To be called when a thread has accepted a connection and goes off to serve it, for any time. Passes the connects that
/// still wait at this process on to the kernel's queue, where each process that serves the listener can accept them.
/// Nothing is passed on if this process comes back soon, if it is not known to have siblings, or if the kernel's queue has
/// no room.
#[cold]
pub(crate) fn leave_to_siblings(s: &Socket, l: &'static Listener) {
    l.leave_hellos();
    let comes_back = s.has(NONBLOCK) || l.waiters.load(Ordering::SeqCst) > 0;
    if comes_back || l.servers.number().is_none() {
        return;
    }
    // SeqCst, in `queued`: a client queues its connect and then looks whether a thread waits here; this thread no longer
    // waits, and then looks at the queues. One of the two sees the other, so none of these connects stays behind.
    if !l.queued() {
        return;
    }
    // A client finds that nobody takes its connect, and makes it once more.
    pass_on(s, l, |_, _| ());
}

/// To be called before a fork whose child may be the one to accept what waits at the listener `fd`. Passes these connects on to
/// the kernel's queue, where either process can accept them. Their clients may make no call before that.
pub(crate) fn leave_to_heirs(fd: i32, s: &Socket, l: &'static Listener) {
    announce_servers(l);
    // A client queues its connect and then looks how many processes serve the listener; this thread has told it, and then
    // looks at the queues. One of the two sees the other, so a connect that stays here is watched by its client.
    fence(Ordering::SeqCst);
    if !l.queued() {
        return;
    }
    let passed = pass_on(s, l, |link, ep| {
        // Its client did not know that it has to watch the connect, and is told to make it once more. Other threads take
        // connects of this link meanwhile, and the outcome of each decides who has it.
        if let Some(seg) = link.segment() {
            seg.set_server(ServerState::HandedOn);
        }
        ep.stir_peer();
    });
    // What is left came after what was passed on, or has no place in the kernel's queue.
    note_all(l, |segment| if passed > 0 { segment.connects_taken() } else { segment.pushed() });
    l.kernel_turn.count_now(l.kernel_fd(fd));
}

/// Passes the connects that wait at this process on to the kernel's queue, as many as that has room for. If one cannot be
/// passed on, which is in no queue any more then, calls `failed` with it and ends. Returns how many it has passed on.
fn pass_on(s: &Socket, l: &'static Listener, failed: impl FnOnce(&'static Link, &'static ShmEndpoint)) -> usize {
    let Some(local) = s.local.get() else { return 0 };
    let address = if local.ip().is_unspecified() { loopback(local) } else { local };
    let room = kernel_queue::listener(address).map_or(0, |found| found.room());
    let passable = |link: &'static Link, seg: Segment| link.trust_is_mutual() && !seg.front_is_remote();
    let most = (room as usize).min(SLOTS);
    for passed in 0..most {
        let Some((link, slot)) = pop_oldest(l, passable) else { return passed };
        let ep = link.endpoint(slot as usize).filter(|ep| slot != 0 && !ep.side.is_live());
        let done = ep.map_or(Err(Errno::NOTCONN), |ep| to_kernel(link, ep));
        if done.is_err() {
            if let Some(ep) = ep {
                failed(link, ep);
            }
            link.put();
            return passed;
        }
        link.put();
        netacc_log::log!(Debug, "listener: a connect that waited here goes to the kernel's queue, for an idle process");
    }
    most
}

/// Takes the oldest of the connects that `which` is true for out of their links' queues, and holds its link.
fn pop_oldest(l: &Listener, which: impl Fn(&'static Link, Segment) -> bool) -> Option<(&'static Link, u32)> {
    let _g = l.lock.lock();
    let waits = |link: &'static Link| Some((link.segment().filter(|s| which(link, *s))?.front_time()?, link));
    let (_, link) = l.links().filter_map(waits).min_by_key(|(when, _)| *when)?;
    l.waits.store(0, Ordering::Relaxed);
    let slot = link.pop()?;
    link.hold_if_used().then_some((link, slot))
}

/// The address of this host at which a listener that is bound to all of them is found.
fn loopback(local: SocketAddr) -> SocketAddr {
    let ip = if local.is_ipv4() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { IpAddr::V6(Ipv6Addr::LOCALHOST) };
    SocketAddr::new(ip, local.port())
}

/// Passes one connect to the kernel's listener. On failure its client may still make it again, or it is reset.
fn to_kernel(link: &'static Link, ep: &'static ShmEndpoint) -> Result<()> {
    let open = &link.segment().and_then(|seg| seg.slot(ep.side.slot_index())).ok_or(Errno::NOTCONN)?.open;
    let (Some(client), Some(server)) = (open.address(0), open.address(1)) else { return Err(Errno::INVAL) };
    if open.remote_engine() != 0 || client.is_ipv4() != server.is_ipv4() || !ep.side.has_windows() {
        return Err(Errno::INVAL);
    }
    let generation = open.generation.load(Ordering::Relaxed);
    let local_end = tcp_socket(server)?;
    let remote = tcp_socket(server).and_then(|remote| bind(&remote, client).map(|()| remote));
    let size = enough::receive_buffer_of_peer(ep);
    if size > 0
        && let Ok(remote) = &remote
    {
        // Before the handshake, in which TCP chooses the unit of its window: a small buffer that is set later leaves windows
        // of a few such units, and the stream waits for a timer between them.
        let _ = raw::setsockopt_int(remote.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, size);
    }
    // The connect is taken first: a server would also accept a connection that turns out not to be needed.
    let done = remote.and_then(|remote| {
        if !ep.side.take() {
            ep.side.never_mind(generation);
            return Ok(());
        }
        connect_at_once(&remote, server).inspect_err(|_| ep.side.untake())?;
        if !ep.begin(generation) {
            return Err(Errno::NOMEM);
        }
        go_on(ep, &local_end, remote).inspect_err(|_| ep.close(true))
    });
    pair::discard(local_end);
    done
}

/// Continues the connection on `peer_end`, whose other end waits at the kernel's listener and for which `local_end`
/// stands.
fn go_on(ep: &'static ShmEndpoint, local_end: &OwnedFd, peer_end: OwnedFd) -> Result<()> {
    ep.readiness();
    // The client may leave the rings for a kernel socket of its own before this process has offered it this one.
    let left =
        if ep.side.is_moving() { Err(Errno::AGAIN) } else { ep.offer_switch(local_end, &peer_end, Leave::ForGood) };
    let done = match left {
        Err(Errno::AGAIN) => join(ep, local_end, &peer_end),
        offered => offered,
    };
    pair::discard(peer_end);
    done?;
    ep.let_go();
    Ok(())
}

/// Joins `peer_end` to the kernel socket on which the client has gone on before a server accepted.
fn join(ep: &'static ShmEndpoint, local_end: &OwnedFd, peer_end: &OwnedFd) -> Result<()> {
    ep.await_kernel();
    ep.readiness();
    if !ep.side.is_moving() {
        return Err(Errno::AGAIN);
    }
    ep.accept_switch()?;
    if ep.passed.kernel_fd() < 0 {
        // The client was stopped before it passed its socket.
        return Err(Errno::TIMEDOUT);
    }
    let all = ep.drain_rest(local_end, peer_end)?;
    if all { relay::start(peer_end.as_raw_fd(), ep.passed.kernel_fd()) } else { Ok(()) }
}

/// Makes a non-blocking TCP socket of the address family of `a`.
fn tcp_socket(a: SocketAddr) -> Result<OwnedFd> {
    let domain = if a.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let fd = raw::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0)?;
    #[allow(unsafe_code)]
    // SAFETY: the kernel has just opened the descriptor, and no other code knows the number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Binds the socket to the client's address, with another port, since the client holds its own.
fn bind(fd: &OwnedFd, client: SocketAddr) -> Result<()> {
    let fd = fd.as_raw_fd();
    let late = |on| raw::setsockopt_int(fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, on);
    let _ = late(1);
    addr::with(SocketAddr::new(client.ip(), 0), |p, len| raw::bind(fd, p, len))?;
    let _ = late(0);
    Ok(())
}

/// Connects, or fails with `ETIMEDOUT` if the kernel's queue of the listener has no room. On one host the kernel
/// connects within the call, unless the host is so busy that a thread of the kernel's has to deliver the packets.
fn connect_at_once(fd: &OwnedFd, server: SocketAddr) -> Result<()> {
    let fd = fd.as_raw_fd();
    by_tcp::at_once_or_not(fd, |until| {
        by_tcp::await_connected(fd, addr::with(server, |p, len| raw::connect(fd, p, len)), until)
    })
}
