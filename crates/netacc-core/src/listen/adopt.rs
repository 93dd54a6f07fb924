//! Sockets that other processes may have before they are connected or listen. The program did not make them: it inherited
//! them over exec (systemd's socket activation, a server that replaces itself) or received them by SCM_RIGHTS. Or it has
//! forked, or passed them on, before it called listen(2) itself.
//!
//! Each of the processes may call listen(2), and each may accept. Such a listener gets its rendezvous in a process when the
//! program first waits on it there: a shell that only passes it on must not have one, and neither must the process that
//! calls listen(2) and leaves it to others to accept. Other processes may have the listener too, with or without rendezvous of
//! their own, so it counts as served by several from the start, and each rendezvous takes a free place of the name.

use crate::fd::create::enter;
use crate::fd::placeholder::is_stdio;
use crate::fd::table;
use crate::listen::{opening, unsettled};
use crate::object::reference::Ref;
use crate::object::socket::{ConnState, NONBLOCK, Path, Socket, notes_of};
use crate::options::remember;
use crate::runtime::{self, Runtime};
use crate::{process_mode, startup};
use libc::{AF_INET, AF_INET6, IPPROTO_TCP, SOL_SOCKET};
use netacc_conf::{Call, Choice};
use netacc_sys::{Lock, addr, lock, lock_rank, raw};
use rustix::fd::AsRawFd;
use rustix::fs::{Mode, OFlags, RawDir, open};

/// Lock that the thread holds which opens the rendezvous of an adopted listener.
static WAKING: Lock<{ lock_rank::ADOPTION }> = Lock::new();

/// Number of descriptors that are looked at without /proc.
const FEW: usize = 64;

/// The numbers of listeners and bound sockets. Most programs have no more than fit here.
struct Found {
    numbers: [i32; 32],
    count: usize,
}

impl Found {
    fn look_at(&mut self, fd: i32) {
        if may_listen(fd)
            && let Some(place) = self.numbers.get_mut(self.count)
        {
            *place = fd;
            self.count += 1;
        }
    }
}

/// To be called before the program begins: notes the listeners, and the bound sockets that may become listeners, among
/// its descriptors.
pub fn inherited() {
    // The numbers are collected first, since what is done with them changes the directory.
    let mut found = Found { numbers: [-1; 32], count: 0 };
    // The directory costs ten times as much as the few numbers that nearly all programs begin with.
    if !(raw::has_least_descriptors() && look_at_few(&mut found)) {
        look_at_all(&mut found);
    }
    found.numbers.iter().take(found.count).for_each(|fd| note(*fd));
}

/// Looks at the open descriptors below [`FEW`]. False if the kernel does not tell which are open.
fn look_at_few(found: &mut Found) -> bool {
    let mut asked = [libc::pollfd { fd: -1, events: 0, revents: 0 }; FEW];
    (0..).zip(asked.iter_mut()).for_each(|(fd, p)| p.fd = fd);
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    if raw::ppoll(asked.as_mut_ptr(), asked.len(), &raw mut now, core::ptr::null()).is_err() {
        return false;
    }
    asked.iter().filter(|p| p.revents & libc::POLLNVAL == 0).for_each(|p| found.look_at(p.fd));
    true
}

/// Looks at all descriptors, by /proc.
fn look_at_all(found: &mut Found) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(dir) = open(c"/proc/self/fd", flags, Mode::empty()) else { return };
    let mut buf = [core::mem::MaybeUninit::uninit(); 2048];
    let mut entries = RawDir::new(&dir, &mut buf);
    while let Some(Ok(entry)) = entries.next() {
        let number = entry.file_name().to_str().ok().and_then(|s| s.parse::<i32>().ok());
        if let Some(fd) = number.filter(|fd| *fd != dir.as_raw_fd()) {
            found.look_at(fd);
        }
    }
    netacc_sys::reserved_fds::drop_raw(dir);
}

/// Whether the kernel's socket under the number listens.
pub(crate) fn listens(fd: i32) -> bool {
    !is_stdio(fd) && raw::getsockopt_int(fd, SOL_SOCKET, libc::SO_ACCEPTCONN) == Ok(1)
}

/// Whether `fd` is a TCP socket that neither listens nor is connected or about to be.
fn is_unconnected(fd: i32) -> bool {
    const CLOSED: u8 = 7;
    let mut state = 0u8;
    let mut len = 1;
    raw::getsockopt_int(fd, SOL_SOCKET, libc::SO_PROTOCOL) == Ok(IPPROTO_TCP)
        && raw::getsockopt(fd, IPPROTO_TCP, libc::TCP_INFO, (&raw mut state).cast(), &raw mut len).is_ok()
        && state == CLOSED
}

/// Whether `fd` is a TCP socket that has a port and neither listens nor is connected.
fn is_bound(fd: i32) -> bool {
    !is_stdio(fd) && is_unconnected(fd) && addr::local_of(fd).is_some_and(|a| a.port() != 0)
}

/// Whether the kernel's socket under the number listens, or is bound and may do so later.
pub(crate) fn may_listen(fd: i32) -> bool {
    listens(fd) || is_bound(fd)
}

/// Notes a descriptor that was received from another process, or from another copy of the library. One that is not even
/// bound yet may be used by any of the processes that have it.
pub fn received(fd: i32) {
    if listens(fd) || (!is_stdio(fd) && is_unconnected(fd)) {
        note(fd);
    }
}

#[cold]
fn note(fd: i32) {
    let int = |name| raw::getsockopt_int(fd, SOL_SOCKET, name);
    let (Ok(domain), Ok(IPPROTO_TCP)) = (int(libc::SO_DOMAIN), int(libc::SO_PROTOCOL)) else { return };
    let wanted = || startup::ensure().is_some_and(|rt| rt.accelerates());
    if !matches!(domain, AF_INET | AF_INET6) || process_mode::reason().is_some() || !wanted() {
        return;
    }
    let notes = raw::fcntl(fd, libc::F_GETFL, 0).map_or(NONBLOCK, notes_of);
    let state = if listens(fd) { ConnState::InheritedTcp } else { ConnState::InheritedNew };
    if let Ok(r) = Socket::alloc(fd, domain, state, notes) {
        let _ = enter(fd, r);
    }
}

/// To be called when the program waits on a listener: opens its rendezvous if it came from another program, and
/// registers it for clients on other hosts. True if it is accelerated.
#[cold]
pub fn wake(fd: i32, r: Ref<Socket>) -> bool {
    let s = r.obj;
    let _g = WAKING.lock();
    // A socket that was only bound before may have become a listener by a call of another process.
    if s.is_inherited() && listens(fd) {
        remember::read_back(s, fd);
        // Any of the processes may have changed the mode of the file that they have in common.
        if let Ok(flags) = raw::fcntl(fd, libc::F_GETFL, 0) {
            s.set(NONBLOCK, flags & libc::O_NONBLOCK != 0);
        }
        opening::adopt(fd, s, backlog(fd));
        // Without a rendezvous the socket is an ordinary one.
        s.end_inheritance();
    } else if s.is_inherited() && !is_unconnected(fd) {
        // Another process has connected it.
        s.leave_to_kernel();
        s.end_inheritance();
    }
    opening::wake(s);
    s.path() == Path::Listener
}

/// To be called when a wait in an epoll instance begins and [`unsettled::is_any`]: takes up registered sockets that were unconnected
/// when other processes got them, and that one of these has made a listener since.
#[cold]
pub(crate) fn settle() {
    // A handler may have interrupted a thread that is taking one up.
    if lock::interrupted() || !unsettled::begin_look() {
        return;
    }
    let mut any = false;
    table::each_socket(|fd, r| {
        // Relaxed: a registration that is made meanwhile is noted after that.
        if r.obj.is(ConnState::InheritedNew) && !r.obj.registrations.is_none() {
            // Another thread may close the number while it is looked at.
            let pin = r.pin();
            if pin.is_some() {
                wake(fd, r);
            }
            any |= r.obj.is(ConnState::InheritedNew);
        }
    });
    if any {
        unsettled::look_again();
    }
}

/// The process is accelerated again: opens a rendezvous for a listener that was left to the kernel. Which other
/// processes have the listener by now is not known.
#[cold]
pub(crate) fn reopen(fd: i32, s: &'static Socket) {
    let _g = WAKING.lock();
    if is_kernels_listener(fd, s) {
        s.leave_to_kernel();
        remember::read_back(s, fd);
        opening::reopen(fd, s, backlog(fd));
    }
}

/// Whether the socket is a listener that is left to the kernel, and that the program has made or waited on.
pub(crate) fn is_kernels_listener(fd: i32, s: &Socket) -> bool {
    matches!(s.path(), Path::New | Path::Tcp) && !s.is_candidate() && !s.is_inherited() && listens(fd)
}

/// The rules were loaded anew: takes a listener to where they permit it, that is, to the kernel alone, to a rendezvous,
/// or from one that other transports were permitted for to a new one. Returns whether a rule leaves the listener to the
/// kernel.
#[cold]
pub(crate) fn follow_rules(fd: i32, s: &'static Socket, rt: &Runtime) -> bool {
    if let Some(l) = s.listener().filter(|_| s.path() == Path::Listener) {
        let Some(local) = s.local.get() else { return false };
        let choice = rt.look(Call::Listen(local));
        let stays = l.permitted() == choice.transports;
        if !stays {
            opening::give_up(fd, s, runtime::forbidden(choice));
        }
        if stays || !choice.transports.any() {
            decide_anew(fd, s, rt, Call::Listen(local));
        } else {
            // This asks the rules once more, and counts.
            reopen(fd, s);
        }
        return !choice.transports.any();
    }
    // A listener that another thread is just opening has no address yet: see `opening::open`.
    let Some(local) = s.local.get().filter(|_| is_kernels_listener(fd, s)) else { return false };
    if rt.permitted(Call::Listen(local)).any() {
        // While the process is not accelerated for another reason, its listeners stay where they are.
        if process_mode::reason().is_none() {
            reopen(fd, s);
        }
        return false;
    }
    let choice = decide_anew(fd, s, rt, Call::Listen(local));
    if let Some(e) = s.stats().filter(|_| process_mode::reason().is_none()) {
        e.set_reason(runtime::forbidden(choice));
    }
    true
}

/// What the rules permit for a listener; the one that decides is counted once, and shown.
fn decide_anew(fd: i32, s: &Socket, rt: &Runtime, call: Call) -> Choice {
    let choice = if s.first_fd() == fd { rt.choose(call) } else { rt.look(call) };
    if let Some(e) = s.stats() {
        rt.show_rule(e, call);
    }
    choice
}

/// The backlog that was passed to listen(2): for a listener TCP_INFO reports it as `tcpi_sacked` (tcp(7); the kernel's
/// tcp_get_info).
fn backlog(fd: i32) -> i32 {
    const SACKED: usize = 28 / 4;
    let mut info = [0i32; 32];
    let mut len = size_of_val(&info) as u32;
    let asked = raw::getsockopt(fd, IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut len);
    let told = info.get(SACKED).copied().filter(|n| asked.is_ok() && *n > 0);
    told.unwrap_or(libc::SOMAXCONN)
}
