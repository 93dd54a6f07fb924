//! The connection that accept(2) returns: one that was queued in shared memory, or one of the kernel's.

use crate::conn::{ports, shown};
use crate::fd::create::enter;
use crate::fd::fd_cache;
use crate::fd::placeholder::{is_stdio, placeholder};
use crate::listen::entrance;
use crate::object::listener::Listener;
use crate::object::reference::Ref;
use crate::object::socket::{ConnState, INQ, KEEPABLE, LINGER_RESET, NONBLOCK, PLACEHOLDER, Socket, Upgrade};
use crate::operator::requests;
use crate::switch::{demote, upgrade};
use crate::timeouts;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::Ordering;
use netacc_stats::{Counter, Reason, State, Transport, page};
use netacc_sys::errno::Result;
use netacc_sys::{addr, raw, time};
use netacc_transport::Endpoint;
use netacc_transport::rdma::engine;
use netacc_transport::shm::ShmEndpoint;
use netacc_transport::shm::slots::SLOTS;

/// Enters a connection that the kernel accepted in the table and on the stats page, and makes it a candidate if its
/// client may switch later.
pub(super) fn plain(s: &'static Socket, new: i32, peer: Option<SocketAddr>, flags: i32) {
    page().count(Counter::AcceptsTcp);
    let ip = netacc_transport::shm::rendezvous::destination;
    // All connections of a listener with a single address have that address.
    let local = s.local.get().filter(|a| !a.ip().is_unspecified()).or_else(|| addr::local_of(new));
    let local_end = local.zip(peer).filter(|(l, p)| ip(p.ip()).is_loopback() || ip(p.ip()) == ip(l.ip()));
    let reason = if local_end.is_some() { Reason::PlainClient } else { Reason::OtherHost };
    page().fallback(reason);
    let mut shown = reason;
    let nonblock = if flags & libc::SOCK_NONBLOCK != 0 { NONBLOCK } else { 0 };
    // A client on this host may offer to switch to shared memory later, and one on another host to RDMA.
    let peer_end =
        if local_end.is_none() { local.zip(peer).filter(|(l, _)| engine::may_be_upgraded(l.port())) } else { None };
    // A client in another network namespace of this host may offer to switch to shared memory, too.
    let neighbour =
        if local_end.is_none() && peer_end.is_none() { local.zip(peer).filter(|_| entrance::open(s)) } else { None };
    let state = match (local_end.or(neighbour), peer_end) {
        (Some(_), _) => ConnState::Candidate(Upgrade::AwaitOffer),
        (None, Some(_)) => ConnState::Candidate(Upgrade::AwaitRequest),
        (None, None) => ConnState::Tcp,
    };
    let Ok(r) = Socket::alloc(new, s.domain(), state, nonblock) else { return };
    if let Some((l, p)) = local_end.or(peer_end).or(neighbour) {
        r.obj.local.set(SocketAddr::new(ip(l.ip()), l.port()));
        r.obj.peer.set(SocketAddr::new(ip(p.ip()), p.port()));
        inherit(r.obj, s);
        if peer_end.is_some() {
            upgrade::accepted(r.obj);
        }
        if neighbour.is_some() {
            let until = time::coarse().saturating_add(time::ns(timeouts::NEIGHBOUR_CANDIDATE));
            r.obj.upgrade.when.store(until, Ordering::Relaxed);
            shown = Reason::ShortLived;
        }
    }
    let entered = enter(new, r).is_ok();
    if peer_end.is_some() {
        // The client's engine may have requested the upgrade already; from now on the connection can be found.
        engine::accepted();
    }
    if entered && let Some(e) = r.obj.stats() {
        e.open(State::Established, Transport::Tcp, shown, time::realtime());
        if let Some(local) = local {
            e.set_addrs(&local.into(), &peer.map(Into::into).unwrap_or_default());
        }
    }
}

/// Takes one queued connection. The descriptor is made first: without one the connection stays queued,
/// as in the kernel.
pub(super) fn take_one(s: &Socket, l: &'static Listener, flags: i32) -> Result<Option<(i32, SocketAddr)>> {
    let cloexec = flags & libc::SOCK_CLOEXEC != 0;
    let kept = if cloexec { fd_cache::take(s.domain()) } else { None };
    let new = kept.map_or_else(|| placeholder(s.domain(), cloexec), Ok)?;
    // Takes at most as many connects as one queue holds, since all of them may have been withdrawn; then control
    // returns to the caller.
    let taken = core::iter::from_fn(|| l.take_next()).take(SLOTS).find_map(|next| {
        let ep = next?;
        let told = addresses(s, ep);
        if told.is_none() {
            ep.close(true);
        }
        told.map(|a| (ep, a))
    });
    let Some((ep, (local, peer))) = taken else {
        let _ = raw::close(new);
        return Ok(None);
    };
    let nonblock = if flags & libc::SOCK_NONBLOCK != 0 { NONBLOCK } else { 0 };
    let keepable = if cloexec { KEEPABLE } else { 0 };
    let r = Socket::alloc(new, s.domain(), ConnState::New, PLACEHOLDER | keepable | nonblock).inspect_err(|_| {
        ep.close(true);
        let _ = raw::close(new);
    })?;
    inherit(r.obj, s);
    fill(r, ep, local, peer);
    enter(new, r).inspect_err(|_| {
        let _ = raw::close(new);
    })?;
    requests::check_again();
    shown::opened(r.obj, ep, local, peer);
    l.accepted.fetch_add(1, Ordering::Relaxed);
    let remote = ep.side.is_remote();
    page().count(if remote { Counter::AcceptsRdma } else { Counter::AcceptsShm });
    netacc_log::log!(Debug, "fd {new}: accepted {peer} over {}", if remote { "RDMA" } else { "shared memory" });
    if is_stdio(new) {
        let _ = demote::by_number(new, Reason::Stdio);
    }
    Ok(Some((new, peer)))
}

/// Copies the options that a connection inherits from its listener (socket(7), tcp(7)).
fn inherit(s: &Socket, listener: &Socket) {
    s.opts.inherit(&listener.opts);
    s.set(INQ, listener.has(INQ));
    for (own, from) in
        [(&s.rcvtimeo, &listener.rcvtimeo), (&s.sndtimeo, &listener.sndtimeo), (&s.linger, &listener.linger)]
    {
        own.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    if listener.has(LINGER_RESET) {
        s.set(LINGER_RESET, true);
    }
}

fn fill(r: Ref<Socket>, ep: &'static ShmEndpoint, local: SocketAddr, peer: SocketAddr) {
    let s = r.obj;
    s.local.set(local);
    s.peer.set(peer);
    s.set_endpoint(ep);
    s.set_state(ConnState::Shm);
}

/// The addresses that a client claims, if they are possible: its own address belongs to this host, and this listener
/// serves the other one.
fn addresses(s: &Socket, ep: &ShmEndpoint) -> Option<(SocketAddr, SocketAddr)> {
    let seg = ep.side.link().segment()?;
    let open = &seg.slot(ep.side.slot_index())?.open;
    let (peer, local) = (open.address(0)?, open.address(1)?);
    let bound = s.local.get()?;
    let now = time::coarse();
    let served =
        bound.ip().is_unspecified() || netacc_transport::shm::rendezvous::destination(bound.ip()) == local.ip();
    let privileged = peer.port() < 1024 && !ep.side.link().peer.is_root();
    let domain = s.domain() == libc::AF_INET6 || matches!(local.ip(), IpAddr::V4(_));
    let local_end = || !privileged && ports::is_local(peer.ip(), now) && ports::is_local(local.ip(), now);
    // An engine of our own user connects on behalf of clients on other hosts, so both addresses are those of its queue
    // pair. The endpoint's remote mark is believed only if the link's process belongs to our own user.
    let known = ep.side.is_remote() || local_end();
    (served && domain && known && local.port() == bound.port()).then_some((local, peer))
}
