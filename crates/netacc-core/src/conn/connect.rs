//! connect(2): shared memory if the destination is this host and a rendezvous is there, else TCP.

use crate::conn::occupy::occupy;
use crate::conn::pool::{self, ClaimFor};
use crate::conn::source_port::{bound_to, choose, mixes_families, take_pair};
use crate::conn::{abort, candidate, kernel_queue, neighbours, pin, ports};
use crate::epoll::paths;
use crate::fd::create::note_connect;
use crate::fd::placeholder::{materialize, to_kernel};
use crate::fd::table;
use crate::listen::opening;
use crate::object::reference::Ref;
use crate::object::socket::{
    CONNECTING, ConnState, NAMED_ADDRESS, NAMED_PORT, NONBLOCK, PLACEHOLDER, Path, REBOUND, Socket, Upgrade,
};
use crate::operator::requests;
use crate::options::kernel_options;
use crate::outcome::Outcome;
use crate::switch::{promote, queued, queued_connects, redispatch, upgrade_client};
use crate::wait::connection;
use crate::{process_mode, runtime};
use core::ffi::c_void;
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::Ordering;
use netacc_conf::{Call, Transports};
use netacc_stats::{Counter, Reason, State, Transport, page};
use netacc_sys::errno::{Answer, Errno, Fail, Result};
use netacc_sys::{addr, raw, sleeping, time};
use netacc_transport::rdma::engine::{self, RouteHandle};
use netacc_transport::shm::rendezvous::{self, SourceProbe};
use netacc_transport::shm::segment::Segment;
use netacc_transport::shm::{ShmEndpoint, budget};
use netacc_transport::{Endpoint, Interest};

/// Divisor of the time-out of a probe, for a non-blocking connect.
const PART_NONBLOCK: u64 = 6;

/// connect(2).
pub fn connect(fd: i32, p: *const c_void, len: u32) -> Outcome {
    requests::check();
    let Some(r) = table::socket(fd) else { return Outcome::Pass };
    if let Err(e) = addr::taken(p, len) {
        return Outcome::Failed(e);
    }
    let s = r.obj;
    match s.path() {
        Path::Shm => connect_existing(r, p, len).into(),
        Path::Listener if addr::family(p, len) == Some(libc::AF_UNSPEC) => {
            let done = raw::connect(fd, p, len);
            if done.is_ok() {
                opening::abort(fd, s);
            }
            done.into()
        }
        // A promotion in progress is first completed or cancelled.
        Path::Tcp if s.is_candidate() && addr::family(p, len) == Some(libc::AF_UNSPEC) && promote::cancel(fd, r) => {
            connect_existing(r, p, len).into()
        }
        Path::Tcp if s.has(CONNECTING) => {
            let done = sleeping::connect(fd, p, len);
            if done.is_ok() {
                s.set(CONNECTING, false);
            }
            by_kernel(s, done)
        }
        Path::Tcp | Path::Listener if !s.is_inherited() => Outcome::Pass,
        Path::New | Path::Tcp | Path::Listener => match addr::read(p, len) {
            Some(dest) if family_fits(s, dest) => begin(fd, r, dest, p, len),
            // AF_UNSPEC, and addresses that are too short or of another family, are answered by the kernel.
            _ => Outcome::pass_after(materialize(fd, s)),
        },
    }
}

fn family_fits(s: &Socket, dest: SocketAddr) -> bool {
    dest.is_ipv4() == (s.domain() == libc::AF_INET)
}

/// connect(2) on a socket in shared memory: the connection is established, has ended, or is to be dissolved
/// (AF_UNSPEC).
fn connect_existing(r: Ref<Socket>, p: *const c_void, len: u32) -> Answer<()> {
    let s = r.obj;
    let Some(ep) = s.endpoint() else { return Err(Errno::ISCONN.into()) };
    match addr::family(p, len) {
        None => Err(Errno::INVAL.into()),
        Some(libc::AF_UNSPEC) => Ok(abort::abort(r, ep)?),
        Some(_) => completed(r, ep, s.has(NONBLOCK)),
    }
}

/// The outcome of a further connect(2), or of a send with MSG_FASTOPEN, which connects before it sends.
fn completed(r: Ref<Socket>, ep: &'static ShmEndpoint, nonblock: bool) -> Answer<()> {
    let s = r.obj;
    if ep.is_pending() {
        return if nonblock { Err(Errno::ALREADY.into()) } else { established(r, Errno::ALREADY) };
    }
    if !s.set(CONNECTING, false) {
        return Err(Errno::ISCONN.into());
    }
    if !ep.observed().has_ended() {
        return Ok(());
    }
    // A non-blocking connect was established and ended before any call reported it, so success is reported once.
    let e = ep.take_error();
    abort::abort(r, ep)?;
    Err(if e != 0 { Errno(e) } else { Errno::CONNABORTED }.into())
}

/// What a send with MSG_FASTOPEN to the address at `p` does before it sends. On a connection in a ring it completes the
/// connect that has not been reported yet. An unconnected socket it gives to the kernel, which alone can send with a connect:
/// it needs a socket of its own and not the template, which all placeholders share.
#[cold]
pub(super) fn fast_open(
    fd: i32,
    r: Ref<Socket>,
    ep: Option<&'static ShmEndpoint>,
    (p, len): (*const c_void, u32),
    flags: i32,
) -> Answer<()> {
    match ep {
        Some(_) if addr::family(p, len) == Some(libc::AF_UNSPEC) => Err(Errno::OPNOTSUPP.into()),
        Some(ep) => completed(r, ep, flags & libc::MSG_DONTWAIT != 0 || r.obj.has(NONBLOCK)),
        None if r.obj.path() == Path::New => Ok(to_kernel(fd, r.obj)?),
        None => Ok(()),
    }
}

/// Waits until the listener's queue has room for the connect. A signal that interrupts the wait does not end the
/// connect (connect(2)), and neither does the time limit of the call, which fails with `late` then.
#[cold]
fn established(r: Ref<Socket>, late: Errno) -> Answer<()> {
    let s = r.obj;
    let _pin = r.pin().ok_or(Errno::BADF)?;
    s.set(CONNECTING, true);
    let until = pin::deadline(s.sndtimeo.load(Ordering::Relaxed));
    match connection::ready(r, Interest { read: false, write: true }, until) {
        Err(Fail::AGAIN) => return Err(late.into()),
        Err(e) => return Err(e),
        Ok(()) => {}
    }
    s.set(CONNECTING, false);
    match s.endpoint() {
        Some(ep) if ep.side.is_dead() => {
            let e = ep.take_error();
            abort::abort(r, ep)?;
            Err(if e != 0 { Errno(e) } else { Errno::CONNREFUSED }.into())
        }
        // Another thread has shut the socket down or disconnected it, which ends the connect.
        None if s.is(ConnState::Aborted) => {
            let error = |fd| raw::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_ERROR).ok();
            let e = table::reach(r).and_then(error).unwrap_or(0);
            Err(if e != 0 { Errno(e) } else { Errno::CONNABORTED }.into())
        }
        _ => Ok(()),
    }
}

fn begin(fd: i32, r: Ref<Socket>, dest: SocketAddr, p: *const c_void, len: u32) -> Outcome {
    let s = r.obj;
    if s.change(ConnState::Aborted, ConnState::New) {
        // The kernel socket still shows the port of the previous connection, which is no longer reserved.
        abort::bind_anew(fd, s);
    }
    if !take_pair(fd, s, dest) {
        return Outcome::Failed(Errno::ADDRNOTAVAIL);
    }
    match accelerate(fd, r, dest) {
        Ok(()) => {
            requests::check_again();
            let remote = s.endpoint().is_some_and(|e| e.side.link().is_remote());
            page().count(if remote { Counter::ConnectsRdma } else { Counter::ConnectsShm });
            note_connect(false);
            netacc_log::log!(
                Debug,
                "fd {fd}: connected to {dest} over {}",
                if remote { "RDMA" } else { "shared memory" }
            );
            if s.endpoint().is_some_and(|e| e.side.link().segment().is_some_and(Segment::may_be_served_by_many)) {
                queued::note(r);
            }
            if s.endpoint().is_some_and(|e| e.side.link().waits_for_ourselves()) {
                opening::take_all();
            }
            if s.has(NONBLOCK) {
                s.set(CONNECTING, true);
                return Outcome::Failed(Errno::INPROGRESS);
            }
            if s.endpoint().is_some_and(ShmEndpoint::is_pending) {
                established(r, Errno::INPROGRESS).into()
            } else {
                Outcome::Done(0)
            }
        }
        // Another thread has connected the socket.
        Err(_) if s.is_shm() => connect_existing(r, p, len).into(),
        Err(reason) => {
            s.pair_name.release();
            plain(fd, r, dest, p, len, reason)
        }
    }
}

/// Calls the kernel's connect and stores the reason on the stats page.
fn plain(fd: i32, r: Ref<Socket>, dest: SocketAddr, p: *const c_void, len: u32, reason: Reason) -> Outcome {
    let s = r.obj;
    if let Err(e) = to_kernel(fd, s) {
        return Outcome::Failed(e);
    }
    let target = target_of(dest);
    // Connects whose link has ended go first, for whatever reason this one goes by TCP.
    if pool::has_ended(target) {
        redispatch::orphans_of(target);
    }
    if process_mode::is_off() {
        queued_connects::leave_for_operator();
    }
    page().count(Counter::ConnectsTcp);
    page().fallback(reason);
    note_connect(true);
    let begun = time::now();
    let done = sleeping::connect(fd, p, len);
    match done {
        Ok(()) | Err(Errno::INPROGRESS) => begun_by_kernel(fd, r, dest, reason, (begun, done.is_ok())),
        // The program may try again with this socket, and find a rendezvous then.
        Err(Errno::CONNREFUSED) => {
            s.change(ConnState::Tcp, ConnState::New);
        }
        Err(_) => {}
    }
    by_kernel(s, done)
}

/// Notes a connection that the kernel makes since `begun`, and whose other end may be met in shared memory or by RDMA later.
fn begun_by_kernel(fd: i32, r: Ref<Socket>, dest: SocketAddr, reason: Reason, (begun, established): (u64, bool)) {
    let s = r.obj;
    s.end_inheritance();
    kernel_queue::note_connect(dest, reason);
    if let Some(e) = s.stats() {
        e.open(State::Established, Transport::Tcp, reason, time::realtime());
        let local = addr::local_of(fd).unwrap_or(dest);
        e.set_addrs(&local.into(), &dest.into());
        if let Some(rt) = runtime::get() {
            rt.show_rule(e, Call::Connect(dest));
        }
    }
    if reason == Reason::TcpFirst && !is_candidate_now(fd, r, dest, (begun, established)) {
        return;
    }
    if matches!(reason, Reason::OtherHost | Reason::PeerPlain | Reason::Musl | Reason::GoOtherHost) {
        search(s, dest, reason, begun);
    }
    netacc_log::log!(Info, "fd {fd}: connect to {dest} uses kernel TCP: {}", reason.name());
}

/// Makes a connection that begins on TCP a candidate, if the configuration permits that it goes on elsewhere, and if its
/// server can be asked. Else a neighbour may have the other end.
fn is_candidate_now(fd: i32, r: Ref<Socket>, dest: SocketAddr, (begun, established): (u64, bool)) -> bool {
    let (s, target) = (r.obj, target_of(dest));
    // The next connect(2) reports that the connection was established, even if it has switched to shared memory by then.
    s.set(CONNECTING, !established);
    let remote = ports::local_source(target.ip(), time::coarse()).is_none();
    let permitted = runtime::get().map_or(Transports::TCP, |rt| rt.permitted(Call::Connect(dest)));
    if !(if remote { permitted.rdma } else { permitted.shm }) {
        if let Some(e) = s.stats() {
            e.set_reason(Reason::Rule);
        }
        return false;
    }
    if remote && !may_upgrade(target) {
        search(s, dest, Reason::TcpFirst, begun);
        return false;
    }
    let upgrade = if remote { Upgrade::ToRequest } else { Upgrade::ToOffer };
    s.change(ConnState::Tcp, ConnState::Candidate(upgrade));
    paths::candidate(s);
    if remote {
        upgrade_client::begin(fd, r, established, target);
    } else if established {
        // The offer is sent at once, so that the answer arrives with the server's first bytes.
        promote::advance(fd, r);
    }
    true
}

/// The outcome of the kernel's connect. One that is restarted waits for the connection that is being made.
fn by_kernel(s: &Socket, done: Result<()>) -> Outcome {
    match done {
        Err(e) => candidate::after_kernel(s.sndtimeo.load(Ordering::Relaxed), e),
        done => done.into(),
    }
}

/// Begins to look for a neighbour that has the other end of a connection which the kernel makes since `begun`, if the
/// configuration permits shared memory.
fn search(s: &'static Socket, dest: SocketAddr, reason: Reason, begun: u64) {
    let permitted = runtime::get().is_some_and(|rt| rt.permitted(Call::Connect(dest)).shm);
    let target = target_of(dest);
    if !permitted || scoped(dest) || target.ip().is_loopback() {
        return;
    }
    if let Some(why) = neighbours::begin(s, target, reason, begun)
        && let Some(e) = s.stats()
    {
        e.set_reason(why);
    }
    if s.is_candidate() {
        paths::candidate(s);
    }
}

/// Whether a connection that begins on TCP may be upgraded to RDMA.
fn may_upgrade(target: SocketAddr) -> bool {
    !scoped(target) && engine::available() && runtime::get().is_some_and(runtime::Runtime::draw)
}

/// The address to which a connect to `dest` leads: an unspecified one stands for this host.
fn target_of(dest: SocketAddr) -> SocketAddr {
    SocketAddr::new(rendezvous::destination(dest.ip()), dest.port())
}

/// The transports by which a connect may be accelerated, as far as the socket, the destination and the configuration say.
fn may_accelerate(fd: i32, s: &Socket, dest: SocketAddr) -> core::result::Result<Transports, Reason> {
    let rt = runtime::get().ok_or(Reason::Disabled)?;
    let choice = rt.choose(Call::Connect(dest));
    if !choice.transports.any() {
        return Err(runtime::forbidden(choice));
    }
    if let Some(why) = process_mode::reason() {
        return Err(why);
    }
    if crate::fd::placeholder::is_stdio(fd) {
        return Err(Reason::Stdio);
    }
    if kernel_options::matter(s, fd) {
        return Err(Reason::Packets);
    }
    if s.is_inherited() {
        // Other processes may have the socket, and only the kernel can show them that it is connected.
        return Err(Reason::SharedSocket);
    }
    if rt.conf.conn_tcp_first {
        // The destination is not known before the connect is made, and cannot be determined afterwards.
        let target = target_of(dest);
        if pool::is_exact(target, true)
            && let Some(source) = ports::local_source(target.ip(), time::coarse())
        {
            choose(fd, s, source, target);
        }
        return Err(Reason::TcpFirst);
    }
    if scoped(dest) {
        return Err(Reason::LinkLocal);
    }
    if dest.port() == 0 {
        return Err(Reason::PeerPlain);
    }
    if mixes_families(fd, s, target_of(dest).ip()) {
        return Err(Reason::Unsupported);
    }
    if !rt.draw() {
        return Err(Reason::PercentDraw);
    }
    if budget::admits() { Ok(choice.transports) } else { Err(Reason::Memory) }
}

/// Connects over shared memory or RDMA, or returns the reason why not. On failure the socket is unchanged.
fn accelerate(fd: i32, r: Ref<Socket>, dest: SocketAddr) -> core::result::Result<(), Reason> {
    let s = r.obj;
    let transports = may_accelerate(fd, s, dest)?;
    let (target, now) = (target_of(dest), time::coarse());
    if let Some(why) = ports::known_absent(target, now) {
        return Err(why);
    }
    let assumed = if s.has(PLACEHOLDER) && transports.shm { ports::first_source(target.ip()) } else { None };
    let source = match assumed.map_or_else(|| ports::source_of_connect(target.ip(), now), Ok) {
        Ok(source) if transports.shm => source,
        Err(probe) if transports.rdma => {
            let asked = probe.is_some();
            return reach(fd, r, target, probe).inspect_err(|_| {
                if asked {
                    ports::note_elsewhere(target.ip(), now);
                }
            });
        }
        _ => return Err(Reason::Rule),
    };
    if kernel_queue::holds_ours(target) {
        return Err(Reason::KernelQueue);
    }
    let mut bound = bound_to(fd, s);
    s.set(NAMED_ADDRESS, bound.is_some_and(|b| !b.ip().is_unspecified()));
    if bound.is_none_or(|b| b.port() == 0) {
        s.set(NAMED_PORT, false);
    }
    // The socket may be bound to another address of this host. As with TCP, that address is shown.
    let ip = bound.map(|b| b.ip()).filter(|ip| !ip.is_unspecified()).map_or(source, rendezvous::destination);
    if ip != source && !ports::is_local(ip, now) {
        return Err(Reason::OtherHost);
    }
    let mut member = None;
    if pool::is_exact(target, false) {
        member = choose(fd, s, ip, target);
        bound = bound_to(fd, s);
    }
    let from = SocketAddr::new(ip, bound.map_or(0, |b| b.port()));
    // Connects whose link has ended go first, wherever they have to go.
    let settle = || !redispatch::orphans_of(target) || !kernel_queue::holds_ours(target);
    let claim = pool::claim_in_order(from, target, member, ClaimFor::Connect, settle)
        .inspect_err(|why| ports::note_absent(target, *why, now))?;
    occupy(fd, s, claim, bound, ip, target)
}

/// Connects to a server on another host, or returns the reason why not. On failure the socket is unchanged.
fn reach(fd: i32, r: Ref<Socket>, target: SocketAddr, probe: Option<SourceProbe>) -> core::result::Result<(), Reason> {
    let s = r.obj;
    let timeout = engine::connect_timeout() / if s.has(NONBLOCK) { PART_NONBLOCK } else { 1 };
    // The entry is renewed only when the kernel was asked, and not by each use: the address may move to this host.
    let asked = probe.is_some();
    let RouteHandle { link, source, optimistic } = engine::reach(target, probe, timeout)?;
    let bound = bound_to(fd, s);
    let elsewhere = bound.is_some_and(|b| !b.ip().is_unspecified() && rendezvous::destination(b.ip()) != source);
    // A server cannot verify that a client on another host really holds a port below 1024.
    let privileged = bound.is_some_and(|b| (1..1024).contains(&b.port()));
    let mut claimed =
        if elsewhere || privileged { Err(Reason::OtherHost) } else { pool::claim_remote(target, link, false) };
    if matches!(claimed, Err(Reason::NoMemory))
        && let Some(more) = engine::widen(target, link)
    {
        claimed = pool::claim_remote(target, more, true);
        more.put();
    }
    // From here on the pool has the reference.
    link.put();
    let claim = claimed?;
    let engine = claim.link.engine();
    occupy(fd, s, claim, bound, source, target)?;
    if asked {
        ports::note_remote(target.ip(), time::coarse());
    }
    if optimistic {
        queued::note(r);
    }
    engine::progress::begin(engine);
    Ok(())
}

/// Whether the destination is link-local. Such an address is ambiguous without its interface, so the connect is left to
/// the kernel.
fn scoped(dest: SocketAddr) -> bool {
    matches!(dest.ip(), IpAddr::V6(a) if a.is_unicast_link_local())
}

/// bind(2).
pub fn bind(fd: i32, p: *const c_void, len: u32) -> Outcome {
    match addr::taken(p, len) {
        Err(e) if table::socket(fd).is_some() => Outcome::Failed(e),
        _ => {
            if let Some(r) = table::socket(fd).filter(|r| r.obj.path() == Path::New) {
                r.obj.set(NAMED_PORT, addr::read(p, len).is_some_and(|a| a.port() != 0));
            }
            before_bind(fd)
        }
    }
}

/// Prepares a socket for the kernel's bind(2): materializes it.
pub fn before_bind(fd: i32) -> Outcome {
    match table::socket(fd) {
        // The port of a dead connection is released; the socket may be bound again, once.
        Some(r) if r.obj.is_shm() => match r.obj.endpoint() {
            Some(ep) if ep.observed().has_ended() && !r.obj.set(REBOUND, true) => Outcome::Done(0),
            _ => Outcome::Failed(Errno::INVAL),
        },
        Some(r) => Outcome::pass_after(materialize(fd, r.obj)),
        None => Outcome::Pass,
    }
}
