//! listen(2) and the rendezvous that goes with it.

use crate::conn::ports;
use crate::epoll::paths;
use crate::fd::placeholder::materialize;
use crate::fd::table::{self, Entry};
use crate::listen::entrance;
use crate::object::kernel_turn::waiting_at;
use crate::object::listener::{LISTENERS, SHARED_BY_FORK, remote_names};
pub use crate::object::listener::{Listener, tcp_ready};
use crate::object::socket::{ConnState, ListenState, NONBLOCK, PLACEHOLDER, Path, Socket};
use crate::operator::requests;
use crate::options::{kernel_options, remember};
use crate::outcome::Outcome;
use crate::switch::syn_stamp;
use crate::{host_directory, process_mode, runtime};
use core::net::{IpAddr, SocketAddr};
use core::ops::Range;
use core::sync::atomic::{Ordering, fence};
use netacc_conf::{Call, Transports};
use netacc_stats::{Reason, State, Transport, page};
use netacc_sys::errno::Errno;
use netacc_sys::{addr, raw, reserved_fds, time};
use netacc_transport::rdma::engine;
use netacc_transport::shm::{owner, rendezvous};
use netacc_wire::companion::OwnPort;
use netacc_wire::{Name, Scope};

/// listen(2).
pub fn listen(fd: i32, backlog: i32) -> Outcome {
    requests::check();
    let Some(r) = table::socket(fd) else { return Outcome::Pass };
    let s = r.obj;
    match s.path() {
        Path::Shm => return Outcome::Failed(Errno::INVAL),
        Path::Listener => {
            if let Some(l) = s.listener() {
                l.limit(backlog);
            }
            return Outcome::Pass;
        }
        Path::New | Path::Tcp => {}
    }
    // A socket that listens already was left to the kernel, and other processes may have it too.
    let listens = !s.has(PLACEHOLDER) && raw::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Ok(1);
    if let Err(e) = materialize(fd, s).and_then(|()| raw::listen(fd, backlog)) {
        return Outcome::Failed(e);
    }
    s.leave_to_kernel();
    // Any of the processes that have the socket may accept, and not this one, which only has called listen(2): until its
    // program waits on the listener, nobody would serve a rendezvous of its own.
    if s.is_inherited() && s.registrations.load().is_none() {
        return Outcome::Done(0);
    }
    let places = 0..if s.end_inheritance() || listens { rendezvous::PLACES } else { 1 };
    open(fd, s, backlog, places);
    Outcome::Done(0)
}

/// Opens a rendezvous for a listener that other processes may have too.
pub fn adopt(fd: i32, s: &'static Socket, backlog: i32) {
    open(fd, s, backlog, 0..rendezvous::PLACES);
}

/// Opens a rendezvous for a listener that was left to the kernel. Its place is not the first one, so that a client
/// knows from the start that a thread may accept in the kernel alone, and does not rely on its place in a link's queue.
pub(crate) fn reopen(fd: i32, s: &'static Socket, backlog: i32) {
    open(fd, s, backlog, 1..rendezvous::PLACES);
}

/// To be called when the program waits on a listener: registers it, so that clients on other hosts find it in this
/// process. This is not done earlier, since a process that only passes the listener on must not be found.
#[cold]
pub fn wake(s: &'static Socket) {
    let state = ConnState::Listener;
    if s.change(state(ListenState::Dormant), state(ListenState::Announced)) {
        entrance::open(s);
        announce(s);
    }
}

/// Registers the listener with the RDMA engines.
fn announce(s: &'static Socket) {
    let state = ConnState::Listener;
    if let Some(local) = s.local.get()
        && s.listener().is_some_and(|l| l.permitted().rdma)
        && !engine::listen(remote_names(s, local))
    {
        // The change fails if the listener has ended meanwhile.
        s.change(state(ListenState::Announced), state(ListenState::Unheard));
        engine::note_unheard();
    }
}

/// To be called when a client has connected by TCP: registers listeners for clients on other hosts that could not be
/// registered when the program began to wait on them, because there was no RDMA device.
pub fn retry_listeners() {
    if engine::retry_due() {
        table::each(0, usize::MAX, |_, e| {
            if let Entry::Socket(r) = e
                && r.obj.is(ConnState::Listener(ListenState::Unheard))
                && let Some(_pin) = r.pin()
                && r.obj.change(ConnState::Listener(ListenState::Unheard), ConnState::Listener(ListenState::Dormant))
            {
                wake(r.obj);
            }
        });
    }
}

/// Makes the socket a listener whose rendezvous is open.
fn begin(fd: i32, s: &'static Socket, l: &'static Listener, adopted: bool) {
    if s.domain() == libc::AF_INET6 {
        // bind(2) may have changed the option, and accepted connections inherit it.
        remember::remember(s, fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY);
    }
    // The kernel's listener must never block us: if several processes see a connection, only one of them gets it. The
    // application's own mode is kept in our flags. A listener that other programs also have keeps its mode: if one of them
    // accepts first that has no library, we block until the next connection, or until a client that waits for us connects by TCP.
    if adopted {
        l.note_sharers(false);
        l.servers.are_unknown();
        // It is opened since the program waits on it here, or has done so before it was left to the kernel.
        l.servers.serve();
        owner::mark_shared(fd);
    } else {
        let _ = raw::fcntl(fd, libc::F_SETFL, (libc::O_RDWR | libc::O_NONBLOCK) as usize);
    }
    s.set_state(ConnState::Listener(ListenState::Dormant));
    if l.permitted().shm && host_directory::usable().is_some() {
        syn_stamp::keep(fd);
    }
    ports::forget_absent();
    paths::became_listener(fd, s);
}

/// Opens the listener's rendezvous at the first free one of these places.
fn open(fd: i32, s: &'static Socket, backlog: i32, places: Range<u16>) {
    let Some(local) = addr::local_of(fd) else { return };
    let adopted = places.end > 1;
    // What waits in the kernel's queue now comes before everything that clients queue once they find the rendezvous.
    let waiting = if adopted { waiting_at(fd).unwrap_or(0) } else { 0 };
    let opened = rendezvous_for(fd, s, local, backlog, places).and_then(|(sock, permitted)| {
        let l = LISTENERS.alloc().ok_or(Reason::NoMemory).inspect_err(|_| reserved_fds::close(sock))?;
        l.start(sock, (backlog, waiting), permitted, s);
        s.set_listener(l);
        begin(fd, s, l, adopted);
        Ok(permitted)
    });
    if let Some(e) = s.stats() {
        let (t, reason) = match opened {
            Ok(permitted) if permitted.shm => (Transport::Shm, Reason::None),
            Ok(_) => (Transport::Rdma, Reason::None),
            Err(reason) => (Transport::Tcp, reason),
        };
        e.open(State::Listening, t, reason, time::realtime());
        e.set_addrs(&local.into(), &Default::default());
        if let Some(rt) = runtime::get() {
            rt.show_rule(e, Call::Listen(local));
        }
    }
    match opened {
        Ok(_) => netacc_log::log!(Info, "fd {fd}: listening at {local} and for shared memory"),
        Err(reason) => {
            page().fallback(reason);
            let why = reason.sentence();
            // What the operator has written down is nothing to warn of.
            if reason == Reason::Rule {
                netacc_log::log!(Info, "fd {fd}: listener at {local} has no rendezvous; clients use TCP: {why}");
            } else {
                netacc_log::log!(Warn, "fd {fd}: listener at {local} has no rendezvous; clients use TCP: {why}");
            }
        }
    }
    s.local.set(local);
    // A thread that loads the rules anew puts them in force and then visits the listeners that have an address; this
    // one stores the address and then looks at the rules.
    fence(Ordering::SeqCst);
    if let Ok(permitted) = opened
        && let Some(rt) = runtime::get()
        && rt.permitted(Call::Listen(local)) != permitted
    {
        return give_up(fd, s, Reason::Rule);
    }
    if s.registrations.load().is_some() {
        // The program is waiting on the listener already.
        wake(s);
    }
}

fn scope_of(fd: i32, ip: IpAddr) -> Scope {
    match ip {
        IpAddr::V4(a) if a.is_unspecified() => Scope::Any4,
        IpAddr::V6(a) if a.is_unspecified() => match raw::getsockopt_int(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) {
            Ok(0) => Scope::Dual,
            _ => Scope::Any6,
        },
        ip => Scope::Addr(rendezvous::destination(ip)),
    }
}

/// The kernel's unique number of the socket, which is never used again (`SO_COOKIE`).
fn cookie(fd: i32) -> netacc_sys::errno::Result<u64> {
    let mut cookie = 0u64;
    let mut len = size_of::<u64>() as u32;
    raw::getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE, (&raw mut cookie).cast(), &raw mut len)?;
    Ok(cookie)
}

/// Opens the rendezvous. Returns its socket and the transports that clients may use.
fn rendezvous_for(
    fd: i32,
    s: &Socket,
    local: SocketAddr,
    backlog: i32,
    places: Range<u16>,
) -> core::result::Result<(i32, Transports), Reason> {
    let choice = runtime::get().ok_or(Reason::Disabled)?.choose(Call::Listen(local));
    if !choice.transports.any() {
        return Err(runtime::forbidden(choice));
    }
    if let Some(why) = process_mode::reason() {
        return Err(why);
    }
    if kernel_options::matter(s, fd) {
        return Err(Reason::Packets);
    }
    // With SO_REUSEPORT several listeners share the port. Each has a rendezvous name of its own, with the cookie that
    // clients learn from the kernel.
    let scope = match raw::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT) {
        // A name that no client looks for: the kernel counts its cookies upwards from 1.
        _ if !choice.transports.shm => Scope::One(!cookie(fd).map_err(|_| Reason::Unsupported)?),
        Ok(1) => Scope::One(cookie(fd).map_err(|_| Reason::ReusePort)?),
        _ => scope_of(fd, local.ip()),
    };
    if choice.transports.shm {
        owner::mark(fd);
    }
    // The number of waiting links is limited independently of the program's backlog.
    let depth = backlog.clamp(16, 1024);
    let at = |place| rendezvous::listen_at(&Name::at(scope, local.port(), place), depth);
    let free = |e: &Errno| *e != Errno::ADDRINUSE;
    match places.map(at).find(|r| r.as_ref().err().is_none_or(free)).unwrap_or(Err(Errno::ADDRINUSE)) {
        Ok(sock) => reserved_fds::adopt(sock).map(|fd| (fd, choice.transports)).map_err(|_| Reason::NoDescriptors),
        Err(Errno::ADDRINUSE) => Err(Reason::NameTaken),
        Err(Errno::MFILE | Errno::NFILE) => Err(Reason::NoDescriptors),
        Err(Errno::NOMEM | Errno(libc::ENOBUFS)) => Err(Reason::NoMemory),
        Err(_) => Err(Reason::Unsupported),
    }
}

/// Takes up the waiting clients of all listeners of this process. A client may be this process itself, and its
/// connection must not depend on descriptors that are free later.
#[cold]
pub fn take_all() {
    table::each(0, usize::MAX, |_, e| {
        if let table::Entry::Socket(r) = e
            && let Some(l) = r.obj.listener()
        {
            // A thread that sleeps on the listener takes links up itself; it would not notice a link that was taken up
            // here. If several processes serve the listener, a process that accepts should take up the link.
            let idle = |l: &Listener| l.waiters.load(Ordering::SeqCst) == 0 && l.many.load(Ordering::Relaxed) == 0;
            l.take_if(idle);
        }
    });
}

/// Whether the companion of a queue pair may connect to this address of this host, at whose port the program listens.
/// The library can remove it from the results of accept(2), but not from a report of poll(2), nor from accept(2) in a
/// process without this library.
pub fn takes_companions(at: SocketAddr) -> OwnPort {
    let mut answer = None;
    table::each(0, usize::MAX, |fd, e| {
        let Entry::Socket(r) = e else { return };
        let s = r.obj;
        let Some(l) = s.listener().filter(|_| s.path() == Path::Listener) else { return };
        let kernel = l.kernel_fd(fd);
        if !s.local.get().is_some_and(|local| is_reached(kernel, local, at)) {
            return;
        }
        let grouped = raw::getsockopt_int(kernel, libc::SOL_SOCKET, libc::SO_REUSEPORT) != Ok(0);
        // A program to which poll(2) has reported the companion would hang in a blocking accept(2) that skips it.
        let hangs = !s.has(NONBLOCK) && l.polled.load(Ordering::Relaxed) != 0;
        let this = if grouped || l.many.load(Ordering::Relaxed) > SHARED_BY_FORK {
            OwnPort::Shared
        } else if l.is_shut() || l.served.load(Ordering::Relaxed) == 0 {
            OwnPort::Closed
        } else if hangs {
            OwnPort::Blocking
        } else if l.many.load(Ordering::Relaxed) != 0 {
            engine::shared_answer(at.port())
        } else {
            OwnPort::Come
        };
        // If the kernel may choose among several listeners, all of them have to permit it.
        if matches!(answer, None | Some(OwnPort::Come)) {
            answer = Some(this);
        }
    });
    answer.unwrap_or(OwnPort::Closed)
}

/// Whether a connection to `at` may come to the listener with the kernel socket `fd`, which is bound to `local`. A
/// program often has one listener for IPv4 and one for IPv6 at the same port, and each gets the connections of its
/// family.
fn is_reached(fd: i32, local: SocketAddr, at: SocketAddr) -> bool {
    let by_address = match (scope_of(fd, local.ip()), at.ip().to_canonical()) {
        (Scope::Any4, ip) => ip.is_ipv4(),
        (Scope::Any6, ip) => ip.is_ipv6(),
        (Scope::Dual, _) => true,
        (_, ip) => local.ip().to_canonical() == ip,
    };
    local.port() == at.port() && by_address
}

/// Ends a listener whose kernel socket no longer listens (shutdown(2), connect(2) with AF_UNSPEC): the socket becomes
/// an ordinary one, and waiting clients are reset. A new listen(2) opens a new rendezvous.
pub fn abort(fd: i32, s: &'static Socket) {
    let Some(l) = s.listener() else { return };
    if let Some(was) = kernel_only(fd, s, l, false) {
        l.reset_queued(was);
    }
}

/// Whether only other processes serve the listener: this one has it by a fork, and its program has not waited on it here.
fn is_only_held(s: &'static Socket, l: &Listener) -> bool {
    l.many.load(Ordering::Relaxed) != 0 && !l.servers.include_this() && !paths::is_watched_here(s)
}

/// Leaves a listener to the kernel alone, as one that counts as `inherited` from here on, or as an ordinary socket. Returns
/// its state as a listener; `None`: another thread has done so before.
fn kernel_only(fd: i32, s: &'static Socket, l: &'static Listener, inherited: bool) -> Option<ListenState> {
    // Another thread may have left this listener, and opened another one for the socket, since the caller found it.
    let is_its = || s.listener().is_some_and(|now| core::ptr::eq(now, l));
    // A child that only has its parent's listener may not know which mode the parent has given it meanwhile.
    let is_parents = inherited && l.inherited.load(Ordering::Relaxed) != 0;
    // The kernel's O_NONBLOCK was set for our own purpose; from now on it has the application's value again. It has it before
    // the listener is left: a thread that finds that makes the kernel's call. A file that other programs have kept its mode.
    if is_its() && !is_parents && !l.servers.is_unknown() {
        let _ = raw::fcntl(fd, libc::F_SETFL, crate::fd::placeholder::status_flags(s) as usize);
    }
    paths::no_listener(s, l, || if is_its() { s.forget_listener(inherited) } else { None })
}

/// Leaves the listener to the kernel and sends queued connects there, since another process will serve it without this
/// library.
#[cold]
pub fn abandon(fd: i32, s: &'static Socket) {
    let Some(l) = s.listener() else { return };
    netacc_log::log!(Info, "fd {fd}: another process may serve the listener; clients use kernel TCP");
    if let Some(was) = kernel_only(fd, s, l, false) {
        l.withdraw(was);
        if let Some(e) = s.stats() {
            e.set_transport(Transport::Tcp);
        }
    }
}

/// Leaves a listener to the kernel that another process which shares it has left. An operator may have asked that
/// process first, and this one next.
#[cold]
pub(crate) fn follow_sharer(fd: i32, s: &'static Socket) {
    process_mode::note_left_to_kernel(true);
    abandon(fd, s);
}

/// The process is accelerated no further, for `why`: leaves a listener to the kernel, which connects that wait here go
/// to as well. Processes that share the rendezvous after a fork leave it too: clients would wait there for one that may
/// never accept.
#[cold]
pub(crate) fn give_up(fd: i32, s: &'static Socket, why: Reason) {
    let Some(l) = s.listener() else { return };
    netacc_log::log!(Info, "fd {fd}: the listener is left to the kernel; clients use kernel TCP: {}", why.sentence());
    l.take_links_of_ours();
    // Where the program does not wait, nobody would accept what comes to a rendezvous that is opened again.
    let only_held = is_only_held(s, l);
    // Nor does a child that only has its parent's listener take that from the parent.
    let is_others = only_held && l.inherited.load(Ordering::Relaxed) != 0;
    let Some(was) = kernel_only(fd, s, l, only_held) else { return };
    if is_others {
        l.close(was)
    } else {
        l.withdraw(was)
    }
    if let Some(e) = s.stats() {
        e.set_transport(Transport::Tcp);
        e.set_reason(why);
    }
}
