//! listen(2) and the rendezvous that goes with it.

use crate::conn::ports;
use crate::epoll::paths;
use crate::fd::placeholder::materialize;
use crate::fd::table;
use crate::fd::table::Entry;
use crate::object::listener::{LISTENERS, SHARED_BY_FORK, remote_names};
pub use crate::object::listener::{Listener, tcp_ready};
use crate::object::socket::{ConnState, ListenState, NONBLOCK, Path, Socket};
use crate::operator::hearing;
use crate::options::{kernel_options, remember};
use crate::outcome::Outcome;
use crate::{process_fallback, runtime};
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::Ordering;
use netacc_conf::{Call, Transports};
use netacc_stats::{Reason, State, Transport, page};
use netacc_sys::errno::Errno;
use netacc_sys::{addr, raw, reserved_fds, time};
use netacc_transport::rdma::engine;
use netacc_transport::shm::rendezvous;
use netacc_wire::companion::OwnPort;
use netacc_wire::{Name, Scope};

/// listen(2).
pub fn listen(fd: i32, backlog: i32) -> Outcome {
    hearing::heed();
    let Some(r) = table::socket(fd) else {
        return Outcome::Pass;
    };
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
    if let Err(e) = materialize(fd, s).and_then(|()| raw::listen(fd, backlog)) {
        return Outcome::Failed(e);
    }
    s.leave_to_kernel();
    // Other processes may have a listener that came from elsewhere, too.
    let places = if s.end_inheritance() { rendezvous::PLACES } else { 1 };
    open(fd, s, backlog, places);
    Outcome::Done(0)
}

/// Opens a rendezvous for a listener that other processes may have too.
pub fn adopt(fd: i32, s: &'static Socket, backlog: i32) {
    open(fd, s, backlog, rendezvous::PLACES);
}

/// The program waits on a listener: makes clients on other hosts find it in this process. This is not done before,
/// since of several processes one that only hands the listener on must not be found.
#[cold]
pub fn wake(s: &'static Socket) {
    let state = ConnState::Listener;
    if s.change(state(ListenState::Dormant), state(ListenState::Announced))
        && let Some(local) = s.local.get()
        && runtime::get().is_some_and(|rt| rt.permitted(Call::Listen(local)).rdma)
        && !engine::listen(remote_names(s, local))
    {
        // Not if the listener has ended meanwhile.
        s.change(state(ListenState::Announced), state(ListenState::Unheard));
        engine::note_unheard();
    }
}

/// A client has come by TCP. If clients of other hosts could not find some listener by RDMA, since there was no device
/// when the program began to wait on it, they are to find it once there is one.
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

/// Opens the listener's rendezvous at the first free one of `places` places.
fn open(fd: i32, s: &'static Socket, backlog: i32, places: u16) {
    let Some(local) = addr::local_of(fd) else {
        return;
    };
    let adopted = places > 1;
    let reason = match rendezvous_for(fd, s, local, backlog, places) {
        Ok(sock) => match LISTENERS.alloc() {
            Some(l) => {
                l.start(sock, backlog, s);
                s.set_listener(l);
                if s.domain() == libc::AF_INET6 {
                    // bind(2) may have changed it, and accepted connections inherit it.
                    remember::remember(s, fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY);
                }
                // The kernel's listener must never block us: of several workers that see a connection only one gets it.
                // The application's own mode is kept in our flags. A listener that other programs have as well stays as
                // they know it: where one of them is faster, we block until the next connection, or until a client that
                // waits for us comes by TCP.
                if adopted {
                    l.note_sharers(false);
                } else {
                    let _ = raw::fcntl(fd, libc::F_SETFL, (libc::O_RDWR | libc::O_NONBLOCK) as usize);
                }
                s.set_state(ConnState::Listener(ListenState::Dormant));
                ports::forget_absent();
                paths::became_listener(fd, s);
                Reason::None
            }
            None => {
                reserved_fds::close(sock);
                Reason::NoMemory
            }
        },
        Err(r) => r,
    };
    if let Some(e) = s.stats() {
        let permitted = runtime::get().map_or(Transports::TCP, |rt| rt.permitted(Call::Listen(local)));
        let t = match reason {
            Reason::None if permitted.shm => Transport::Shm,
            Reason::None => Transport::Rdma,
            _ => Transport::Tcp,
        };
        e.open(State::Listening, t, reason, time::realtime());
        e.set_addrs(&local.into(), &Default::default());
        if let Some(rt) = runtime::get() {
            rt.show_rule(e, Call::Listen(local));
        }
    }
    if reason != Reason::None {
        page().fallback(reason);
        let why = reason.sentence();
        // What the operator has written down is nothing to warn of.
        if reason == Reason::Rule {
            netacc_log::log!(Info, "fd {fd}: listener at {local} has no rendezvous; clients use TCP: {why}");
        } else {
            netacc_log::log!(Warn, "fd {fd}: listener at {local} has no rendezvous; clients use TCP: {why}");
        }
    }
    if reason == Reason::None {
        netacc_log::log!(Info, "fd {fd}: listening at {local} and for shared memory");
    }
    s.local.set(local);
    if !s.registrations.load(Ordering::Acquire).is_null() {
        // The program waits on it already.
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

/// The number by which the kernel tells this socket from all others for ever (`SO_COOKIE`).
fn cookie(fd: i32) -> netacc_sys::errno::Result<u64> {
    let mut cookie = 0u64;
    let mut len = size_of::<u64>() as u32;
    raw::getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE, (&raw mut cookie).cast(), &raw mut len)?;
    Ok(cookie)
}

fn rendezvous_for(
    fd: i32,
    s: &Socket,
    local: SocketAddr,
    backlog: i32,
    places: u16,
) -> core::result::Result<i32, Reason> {
    let choice = runtime::get().ok_or(Reason::Disabled)?.choose(Call::Listen(local));
    if !choice.transports.any() {
        return Err(runtime::forbidden(choice));
    }
    if let Some(why) = process_fallback::reason() {
        return Err(why);
    }
    if kernel_options::matter(s, fd) {
        return Err(Reason::Packets);
    }
    // With SO_REUSEPORT several listeners share the port. Each has a name of its own, which clients learn from the
    // kernel.
    let scope = match raw::getsockopt_int(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT) {
        // A name that no client looks for: the kernel counts its cookies upwards from 1.
        _ if !choice.transports.shm => Scope::One(!cookie(fd).map_err(|_| Reason::Unsupported)?),
        Ok(1) => Scope::One(cookie(fd).map_err(|_| Reason::ReusePort)?),
        _ => scope_of(fd, local.ip()),
    };
    // Links are few, whatever the backlog of connections is.
    let depth = backlog.clamp(16, 1024);
    let at = |place| rendezvous::listen_at(&Name::at(scope, local.port(), place), depth);
    let free = |e: &Errno| *e != Errno::ADDRINUSE;
    match (0..places).map(at).find(|r| r.as_ref().err().is_none_or(free)).unwrap_or(Err(Errno::ADDRINUSE)) {
        Ok(sock) => reserved_fds::adopt(sock).map_err(|_| Reason::NoDescriptors),
        Err(Errno::ADDRINUSE) => Err(Reason::NameTaken),
        Err(Errno::MFILE | Errno::NFILE) => Err(Reason::NoDescriptors),
        Err(Errno::NOMEM | Errno(libc::ENOBUFS)) => Err(Reason::NoMemory),
        Err(_) => Err(Reason::Unsupported),
    }
}

/// Takes up the clients of all listeners of this process: one of them may be this process itself, and a connection that
/// can be made now must not depend on descriptors that are free later.
#[cold]
pub fn take_all() {
    table::each(0, usize::MAX, |_, e| {
        if let table::Entry::Socket(r) = e
            && let Some(l) = r.obj.listener()
        {
            // A thread that sleeps on the listener does that itself; it would not hear of a link that we took. And
            // where several processes serve the listener, a process that accepts is to take the link.
            let idle = |l: &Listener| l.waiters.load(Ordering::SeqCst) == 0 && l.many.load(Ordering::Relaxed) == 0;
            l.take_if(idle);
        }
    });
}

/// Whether the TCP connection beside a queue pair of ours may come to this port, at which the program listens: it can be
/// taken out of what accept(2) gives, but not out of what poll(2) has said, nor out of the accept(2) of a process that does not
/// know of it.
pub fn takes_companions(port: u16) -> OwnPort {
    let mut answer = None;
    table::each(0, usize::MAX, |fd, e| {
        let Entry::Socket(r) = e else { return };
        let s = r.obj;
        let Some(l) = s.listener().filter(|_| s.path() == Path::Listener) else { return };
        if s.local.get().is_none_or(|local| local.port() != port) {
            return;
        }
        let grouped = raw::getsockopt_int(l.kernel_fd(fd), libc::SOL_SOCKET, libc::SO_REUSEPORT) != Ok(0);
        // A program that has seen a connection in poll(2) would hang in a blocking accept(2) that finds none.
        let hangs = !s.has(NONBLOCK) && l.polled.load(Ordering::Relaxed) != 0;
        let this = if grouped || l.many.load(Ordering::Relaxed) > SHARED_BY_FORK {
            OwnPort::Shared
        } else if l.is_shut() || l.served.load(Ordering::Relaxed) == 0 {
            OwnPort::Closed
        } else if hangs {
            OwnPort::Blocking
        } else if l.many.load(Ordering::Relaxed) != 0 {
            engine::shared_answer(port)
        } else {
            OwnPort::Come
        };
        // Of several listeners each has to take it: the kernel chooses by address.
        if matches!(answer, None | Some(OwnPort::Come)) {
            answer = Some(this);
        }
    });
    answer.unwrap_or(OwnPort::Closed)
}

/// The kernel's socket listens no longer (shutdown(2), connect(2) with AF_UNSPEC): it is an ordinary one
/// again, clients that wait are reset. A new listen(2) opens a new rendezvous.
pub fn abort(fd: i32, s: &'static Socket) {
    let Some(l) = s.listener() else { return };
    if let Some(was) = kernel_only(fd, s) {
        l.reset_queued(was);
    }
}

/// Leaves a listener to the kernel alone. Returns what it was; `None`: another thread was faster.
fn kernel_only(fd: i32, s: &'static Socket) -> Option<ListenState> {
    paths::no_listener(s);
    let was = s.forget_listener()?;
    // We set the kernel's flag for ourselves; from now on it is the application's again.
    let flags = crate::fd::placeholder::status_flags(s) as usize;
    let _ = raw::fcntl(fd, libc::F_SETFL, flags);
    Some(was)
}

/// Another process will serve the listener without this library's knowledge: makes it the kernel's alone, and sends
/// clients that wait in our queues there.
#[cold]
pub fn abandon(fd: i32, s: &'static Socket) {
    let Some(l) = s.listener() else { return };
    netacc_log::log!(Info, "fd {fd}: another process may serve the listener; clients use kernel TCP");
    if let Some(was) = kernel_only(fd, s) {
        l.withdraw(was);
    }
}

/// The process is accelerated no further, for `why`: leaves a listener to the kernel, which connects that wait here go to as
/// well. Processes that share the rendezvous after a fork leave it too: clients would wait there for one that may never accept.
#[cold]
pub(crate) fn give_up(fd: i32, s: &'static Socket, why: Reason) {
    let Some(l) = s.listener() else { return };
    netacc_log::log!(Info, "fd {fd}: the listener is left to the kernel; clients use kernel TCP: {}", why.sentence());
    // What waits at the rendezvous has queued connects, perhaps, and its process may not call us for long.
    l.take_all_links();
    let Some(was) = kernel_only(fd, s) else { return };
    l.withdraw(was);
    if let Some(e) = s.stats() {
        e.set_transport(Transport::Tcp);
        e.set_reason(why);
    }
}
