//! accept(2): takes whatever is ready first, a connection in shared memory or one of the kernel's.

use crate::conn::accepted::{plain, take_one};
use crate::conn::pin::Waiting;
use crate::conn::{accept_turn, candidate};
use crate::fd::placeholder::placeholder;
use crate::fd::{closing, fd_cache, later, table};
use crate::listen::{adopt, opening, taking, withdrawal};
use crate::object::listener::{Listener, tcp_ready};
use crate::object::reference::Ref;
use crate::object::socket::{NONBLOCK, Path, SLEPT_ON, Socket};
use crate::operator::requests;
use crate::options::remember;
use crate::outcome::Outcome;
use crate::switch::{offers, queued_connects};
use crate::wait::bell::Bell;
use crate::wait::call_signals::CallSignals;
use crate::wait::sleep;
use crate::{fallback, process_mode};
use core::ffi::c_void;
use core::sync::atomic::Ordering;
use netacc_sys::errno::{Answer, Errno, Fail, Result};
use netacc_sys::time::Deadline;
use netacc_sys::{addr, cpu, raw, visits};
use netacc_transport::WaitSet;
use netacc_transport::rdma::engine::{self, progress};

/// The flags that accept4(2) has.
const ACCEPT_FLAGS: i32 = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;

/// Time (ticks, some 50 microseconds) for which the kernel's answer "no connection" is believed by a non-blocking
/// accept that follows an accelerated one. The caller's next wait asks the kernel again.
const BELIEVED: u64 = 150_000;

/// accept(2) and accept4(2).
pub fn accept4(fd: i32, p: *mut c_void, len: *mut u32, flags: i32) -> Outcome {
    later::close_later();
    requests::check();
    // The call holds the listener to its end, also where another thread closes the number.
    let mut call = Waiting::default();
    // A loop, since an operator may switch the process off and on any number of times while the thread sleeps.
    loop {
        let outcome = accept_while_switched(fd, p, len, flags, &mut call);
        match (outcome, call.held().filter(|r| table::socket(fd) != Some(*r))) {
            (None | Some(Outcome::Pass | Outcome::Anew { .. }), Some(r)) if r.obj.kept.fd() >= 0 => {
                return accept_after_close(r, p, len, flags, call.until(&r.obj.rcvtimeo));
            }
            (None, _) => {}
            (Some(Outcome::Anew { .. }), _) => return Outcome::Anew { waits: libc::POLLIN, until: call.end() },
            (Some(outcome), _) => return outcome,
        }
    }
}

/// Goes on with a call whose number another thread has closed, at a listener that was left to the kernel meanwhile.
#[cold]
fn accept_after_close(r: Ref<Socket>, p: *mut c_void, len: *mut u32, flags: i32, until: Deadline) -> Outcome {
    let mut from = addr::Accepted::default();
    loop {
        let fd = r.obj.kept.fd();
        if !r.obj.has(NONBLOCK)
            && let Err(e) = sleep::for_kernel(Some(fd), fd, libc::POLLIN, until, false)
        {
            return e.into();
        }
        match accept_turn::alone(r.obj, fd, true, || from.accept_sleeping(fd, flags)) {
            Ok(new) => {
                if !p.is_null()
                    && let Err(e) = addr::check(p, len)
                {
                    let _ = raw::close(new);
                    return Outcome::Failed(e);
                }
                from.give(p, len);
                plain(r.obj, new, from.peer(), flags);
                return Outcome::Done(new as isize);
            }
            Err(Errno::AGAIN) if !r.obj.has(NONBLOCK) => {}
            Err(e) => return candidate::after_kernel(r.obj.rcvtimeo.load(Ordering::Relaxed), e),
        }
    }
}

/// The call as long as the listener stays where it is. `None`: an operator has switched the process on, and the call
/// begins again.
fn accept_while_switched(fd: i32, p: *mut c_void, len: *mut u32, flags: i32, call: &mut Waiting) -> Option<Outcome> {
    let Some(r) = table::socket(fd) else { return Some(Outcome::Pass) };
    if r.obj.sleeps() {
        adopt::wake(fd, r);
    }
    let (s, Some(l)) = (r.obj, r.obj.listener()) else {
        return match r.obj.is_shm() {
            true => Some(Outcome::Failed(Errno::INVAL)),
            false => accept_by_kernel(fd, r, (p, len, flags), call),
        };
    };
    if flags & !ACCEPT_FLAGS != 0 {
        return Some(Outcome::Failed(Errno::INVAL));
    }
    // An address that cannot be stored is the error of a call that has taken a connection, and so ends that connection.
    let storable = if p.is_null() { Ok(()) } else { addr::check(p, len) };
    let (p_of_peer, room) = if storable.is_ok() { (p, len) } else { (core::ptr::null_mut(), core::ptr::null_mut()) };
    if l.served.load(Ordering::Relaxed) == 0 {
        l.served.store(1, Ordering::Relaxed);
    }
    l.serve();
    loop {
        match try_accept(fd, s, l, p_of_peer, room, flags) {
            Err(Fail::AGAIN) if !s.has(NONBLOCK) => {}
            Err(Fail::ToKernel) => return accept_by_kernel(fd, r, (p, len, flags), call),
            Ok(new) => {
                l.servers.note_accepted(new);
                if l.has_siblings() {
                    withdrawal::leave_to_siblings(s, l);
                }
                let Err(e) = storable else { return Some(Outcome::Done(new as isize)) };
                if closing::close(new) == Outcome::Pass {
                    let _ = raw::close(new);
                }
                return Some(Outcome::Failed(e));
            }
            Err(Fail::Errno(Errno::MFILE)) if fallback::give_back_descriptors() => return Some(Outcome::Pass),
            done => return Some(done.into()),
        }
        if let Err(e) = call.hold(r) {
            return Some(e.into());
        }
        if let Err(e) = wait_for_connection(fd, r, l, call.until(&s.rcvtimeo)) {
            return Some(e.into());
        }
        if is_left(s, l) {
            return accept_by_kernel(fd, r, (p, len, flags), call);
        }
    }
}

/// The call at a listener that is the kernel's alone. If an operator may bring the listener back, the thread waits in a
/// call of ours: it may be the only one that hears of the next request, or that goes on with what remains of this one.
/// `None`: the listener has come back, or no longer may.
fn accept_by_kernel(
    fd: i32,
    r: Ref<Socket>,
    (p, len, flags): (*mut c_void, *mut u32, i32),
    call: &mut Waiting,
) -> Option<Outcome> {
    // The mode says that listeners are awaited before any is left, and no longer than until all are back. So it is asked for
    // after a look at the listener, and what it says counts if the listener has not come back until then.
    let is_back = || r.obj.path() == Path::Listener;
    if is_back() {
        return None;
    }
    let awaited = process_mode::is_awaited();
    if is_back() {
        return None;
    }
    // What the kernel answers for an address that it cannot store, or for flags that there are not, it answers itself.
    let storable = (p.is_null() || addr::check(p, len).is_ok()) && flags & !ACCEPT_FLAGS == 0;
    if !awaited || !storable || !kernel_would_block(fd) {
        return Some(Outcome::Pass);
    }
    if let Err(e) = call.hold(r) {
        return Some(e.into());
    }
    // A thread that closes the number leaves the file under one of ours.
    r.obj.set(SLEPT_ON, true);
    // The time-out may have been set since the kernel alone serves the listener.
    remember::read_back(r.obj, r.obj.kernel_fd(fd));
    let until = call.until(&r.obj.rcvtimeo);
    let mut from = addr::Accepted::default();
    loop {
        match sleep_while_kernels(fd, r, until) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(e) => return Some(e.into()),
        }
        let number = r.obj.kernel_fd(fd);
        match accept_turn::alone(r.obj, number, true, || from.accept_sleeping(number, flags)) {
            Ok(new) => {
                from.give(p, len);
                return Some(Outcome::Done(new as isize));
            }
            Err(Errno::AGAIN) => {}
            // Another thread has closed the number just now.
            Err(Errno::BADF) if number != r.obj.kernel_fd(fd) => {}
            Err(e) => return Some(candidate::after_kernel(r.obj.rcvtimeo.load(Ordering::Relaxed), e)),
        }
    }
}

/// Whether the kernel's socket under the number is a listener at which its accept(2) blocks.
fn kernel_would_block(fd: i32) -> bool {
    let blocks = || raw::fcntl(fd, libc::F_GETFL, 0).is_ok_and(|flags| flags & libc::O_NONBLOCK == 0);
    adopt::listens(fd) && blocks()
}

fn try_accept(
    fd: i32,
    s: &'static Socket,
    l: &'static Listener,
    p: *mut c_void,
    len: *mut u32,
    flags: i32,
) -> Answer<i32> {
    loop {
        let (queued, kernels_turn) = whose_turn(fd, l);
        if queued && !kernels_turn {
            match take_one(s, l, flags) {
                Ok(Some((new, peer))) => {
                    addr::write(peer, s.domain(), p, len);
                    return Ok(new);
                }
                Ok(None) => {}
                Err(e) => return Err(e.into()),
            }
        }
        let now = cpu::ticks();
        let asked = l.tcp_checked.load(Ordering::Relaxed);
        let seen = l.tcp_waits.see();
        if asked != 0 && !kernels_turn && now.wrapping_sub(asked) < BELIEVED && s.has(NONBLOCK) && !seen.is_told() {
            return Err(Fail::AGAIN);
        }
        if !kernels_turn && l.take_links() && l.queued() {
            continue;
        }
        if l.is_shut() {
            opening::follow_sharer(fd, s);
            return Err(Fail::ToKernel);
        }
        let kernel = l.kernel_fd(fd);
        let mut from = addr::Accepted::default();
        match ask_kernel(kernel, s, l, seen.is_told(), &mut from, flags) {
            // A companion connection belongs to a queue pair, and is never reported to the program.
            Ok(new) if engine::take_companion(new) => l.kernel_turn.accepted(),
            Ok(new) => {
                l.kernel_turn.accepted();
                from.give(p, len);
                opening::retry_listeners();
                plain(s, new, from.peer(), flags);
                return Ok(new);
            }
            Err(Errno::AGAIN) if kernels_turn => l.kernel_turn.end(),
            Err(Errno::AGAIN) => {
                l.kernel_turn.end();
                l.tcp_waits.take_back(seen);
                l.tcp_checked.store(now | 1, Ordering::Relaxed);
                return Err(if l.starves() { Errno::MFILE.into() } else { Fail::AGAIN });
            }
            // Another thread has closed the number just now. This call began before that, so it continues on the
            // kernel's listener.
            Err(Errno::BADF) if kernel != l.kernel_fd(fd) => {}
            Err(e) => return Err(failed(s, e)),
        }
    }
}

/// Whether connects wait in shared memory, and whether the kernel's queue has its turn before them.
fn whose_turn(fd: i32, l: &'static Listener) -> (bool, bool) {
    let (mut queued, more) = l.queued_or_more();
    if more && taking::take_older(l) {
        queued = queued || l.queued();
    }
    let is_kernels_turn = || l.is_kernels_turn(l.kernel_fd(fd));
    // A link that was not taken up yet may have an older connect.
    (queued, queued && is_kernels_turn() && (!l.take_links() || is_kernels_turn()))
}

/// What follows for a call whose accept4(2) in the kernel has failed.
fn failed(s: &Socket, e: Errno) -> Fail {
    match candidate::after_kernel(s.rcvtimeo.load(Ordering::Relaxed), e) {
        Outcome::Restart => Fail::Restart,
        _ => e.into(),
    }
}

/// Calls the kernel's accept4 only if a connection waits or no descriptor is free. The kernel allocates a whole socket
/// before it finds that no connection waits, which takes ten times as long as these checks; a missing descriptor it
/// reports before that.
fn ask_kernel(fd: i32, s: &Socket, l: &Listener, told: bool, from: &mut addr::Accepted, flags: i32) -> Result<i32> {
    if told || tcp_ready(fd) {
        // A report of the listener's epoll instance is believed where the kernel's accept(2) does not block.
        return match s.has(NONBLOCK) {
            true => from.accept(fd, flags),
            false => accept_turn::alone(s, fd, l.has_siblings(), || from.accept_sleeping(fd, flags)),
        };
    }
    if !fd_cache::any() {
        raw::close(placeholder(s.domain(), true)?)?;
    }
    Err(Errno::AGAIN)
}

/// Whether another thread, or an operator, has left the listener to the kernel while a call is under way.
fn is_left(s: &Socket, l: &'static Listener) -> bool {
    !s.listener().is_some_and(|now| core::ptr::eq(now, l))
}

/// Waits for a connection at a listener of the kernel's that an operator may bring back: the kernel's own accept(2)
/// would not hear of that. Returns whether one waits there; if not, the listener is to be looked at again.
#[cold]
fn sleep_while_kernels(fd: i32, r: Ref<Socket>, until: Deadline) -> Answer<bool> {
    let bell = Bell::take();
    let mut signals = CallSignals::new(core::ptr::null());
    while process_mode::is_awaited() && r.obj.path() != Path::Listener {
        if visits::is_leaving() {
            return Err(Fail::Anew);
        }
        if until.passed() {
            return Err(Fail::AGAIN);
        }
        let number = r.obj.kernel_fd(fd);
        let is_replaced = || r.obj.kept.fd() < 0 && table::is_replaced(r, fd);
        if is_replaced() {
            // The call ends with EINTR, as in `connection::until_done`.
            return Err(Fail::INTR);
        }
        let mut set = WaitSet::new();
        let at = set.add(number, libc::POLLIN);
        bell.watch(&mut set);
        let scope = progress::ProgressScope::Bystander;
        let wake = queued_connects::within(until);
        let slept = sleep::sleep(&mut set, scope, wake, &mut signals, |_| {});
        bell.silence();
        match slept {
            Ok(_) if is_replaced() => {}
            Ok(_) if set.revents(at) != 0 => return signals.leave(until).map(|()| true),
            Ok(_) => {}
            Err(Fail::INTR) => signals.interrupted(until)?,
            Err(e) => return Err(e),
        }
    }
    signals.leave(until).map(|()| false)
}

fn wait_for_connection(fd: i32, r: Ref<Socket>, l: &'static Listener, deadline: Deadline) -> Answer<()> {
    if deadline != Deadline::Now && table::is_replaced(r, fd) {
        // The call ends with EINTR, as in `wait::until_done`.
        return Err(Fail::INTR);
    }
    let bell = Bell::take();
    let mut signals = CallSignals::new(core::ptr::null());
    // A ring for what another thread did before this one had the bell is not heard.
    if is_left(r.obj, l) {
        return Ok(());
    }
    loop {
        // The program may have connects that wait for it at a listener that was left meanwhile, or for another process.
        let until = queued_connects::within(deadline);
        let number = l.kernel_fd(fd);
        let mut set = WaitSet::new();
        set.add(number, libc::POLLIN);
        progress::progress();
        bell.watch(&mut set);
        let slept = if l.arm(&mut set) {
            l.disarm(&set);
            Ok(1)
        } else {
            sleep::sleep(&mut set, progress::ProgressScope::Bystander, until, &mut signals, |set| l.disarm(set))
        };
        bell.silence();
        match slept {
            Ok(_) if is_left(r.obj, l) => return signals.leave(deadline),
            Ok(0) if deadline.passed() => return Err(Fail::AGAIN),
            Ok(0) => {}
            // Only the kernel has a connection, and nobody asks for a link.
            Ok(_) if set.only_reported(number) && !table::is_replaced(r, number) => return Ok(()),
            Ok(_) => {
                l.sweep();
                // No other thread of this process may be awake to answer a neighbour.
                offers::settle_offers();
                if l.queued() || l.take_links() || tcp_ready(l.kernel_fd(fd)) {
                    return Ok(());
                }
                // See `wait::ready`.
                if table::is_replaced(r, number) && set.only_reported(number) {
                    return Err(Fail::INTR);
                }
            }
            Err(Fail::INTR) => signals.interrupted(deadline)?,
            Err(e) => return Err(e),
        }
        if !r.valid() {
            return Err(Fail::BADF);
        }
    }
}
