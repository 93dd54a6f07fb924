//! The table of intercepted calls.

use crate::time;
use core::ffi::{c_int, c_uint, c_void};
use libc::{
    epoll_event, iovec, mmsghdr, msghdr, nfds_t, off_t, pollfd, sigset_t, size_t, sockaddr, socklen_t, ssize_t,
    timespec, timeval,
};
use netacc_core::conn::{accept, connect as conn, control, file, io, msg};
use netacc_core::epoll::call::Call;
use netacc_core::fd::{closing, create, table};
use netacc_core::listen::opening as lst;
use netacc_core::options::opts;
use netacc_core::wait::{poll, select};
use netacc_core::{Outcome, epoll};
use netacc_sys::errno::Errno;
use netacc_sys::time::{Deadline, Until};
use netacc_sys::{libc_kind, raw, user};

type Sock = *const sockaddr;
type SockMut = *mut sockaddr;
type Len = *mut socklen_t;

hooks! {
    // Descriptors.
    fn socket(domain: c_int, ty: c_int, proto: c_int) -> c_int => create::socket(domain, ty, proto);
    fn close(fd: c_int) -> c_int where closing::concerns(fd) => closing::close(fd);
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int => closing::close_range(first, last, flags as u32);
    fn dup(fd: c_int) -> c_int where create::concerns_dup(fd) => create::dup(fd);
    fn dup2(old: c_int, new: c_int) -> c_int => create::dup3(old, new, 0, true);
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int => create::dup3(old, new, flags, false);
    // Variadic in C; on x86-64 and AArch64 Linux a third argument arrives where a fixed one would.
    fn fcntl(fd: c_int, cmd: c_int, arg: usize) -> c_int
        where control::concerns(fd, cmd) => control::fcntl(fd, cmd, arg);
    fn fcntl64(fd: c_int, cmd: c_int, arg: usize) -> c_int
        where control::concerns(fd, cmd) => control::fcntl(fd, cmd, arg);
    fn ioctl(fd: c_int, request: usize, arg: usize) -> c_int
        where table::knows(fd) || control::gives_socket(request) => control::ioctl(fd, request, arg);

    // Connections.
    fn bind(fd: c_int, addr: Sock, len: socklen_t) -> c_int where table::knows(fd) => conn::bind(fd, addr.cast(), len);
    // libc's function calls bind internally, where no hook sees it.
    fn bindresvport(fd: c_int, addr: SockMut) -> c_int where table::knows(fd) => conn::before_bind(fd);
    fn listen(fd: c_int, backlog: c_int) -> c_int where table::knows(fd) => lst::listen(fd, backlog);
    fn connect(fd: c_int, addr: Sock, len: socklen_t) -> c_int
        where table::knows(fd) => sleeps!(conn::connect(fd, addr.cast(), len));
    fn accept(fd: c_int, addr: SockMut, len: Len) -> c_int
        where closing::concerns(fd) => sleeps!(accept::accept4(fd, addr.cast(), len, 0));
    fn accept4(fd: c_int, addr: SockMut, len: Len, flags: c_int) -> c_int
        where closing::concerns(fd) => sleeps!(accept::accept4(fd, addr.cast(), len, flags));
    fn shutdown(fd: c_int, how: c_int) -> c_int where table::knows(fd) => control::shutdown(fd, how);
    fn getsockname(fd: c_int, addr: SockMut, len: Len) -> c_int
        where table::knows(fd) => control::getsockname(fd, addr.cast(), len);
    fn getpeername(fd: c_int, addr: SockMut, len: Len) -> c_int
        where table::knows(fd) => control::getpeername(fd, addr.cast(), len);
    fn getsockopt(fd: c_int, level: c_int, name: c_int, val: *mut c_void, len: Len) -> c_int
        where table::knows(fd) => opts::get(fd, level, name, val, len);
    fn setsockopt(fd: c_int, level: c_int, name: c_int, val: *const c_void, len: socklen_t) -> c_int
        where table::knows(fd) => opts::set(fd, level, name, val, len);

    // Bytes.
    fn send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t
        where io::concerns(fd) => sleeps!(io::send(fd, buf.cast(), n, flags));
    fn sendto(fd: c_int, buf: *const c_void, n: size_t, flags: c_int, addr: Sock, len: socklen_t) -> ssize_t
        where io::concerns(fd) => sleeps!(io::send_to(fd, buf.cast(), n, flags, addr.cast(), len));
    fn write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t
        where io::concerns(fd) => sleeps!(io::send(fd, buf.cast(), n, 0));
    fn writev(fd: c_int, vec: *const iovec, n: c_int) -> ssize_t
        where io::concerns(fd) => sleeps!(io::vectored(fd, vec, n, true, 0));
    fn recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t
        where io::concerns(fd) => sleeps!(io::recv(fd, buf.cast(), n, flags));
    fn recvfrom(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int, addr: SockMut, len: Len) -> ssize_t
        where io::concerns(fd) => io::received_from(sleeps!(io::recv(fd, buf.cast(), n, flags)), addr.cast(), len);
    fn read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t where io::concerns(fd) => sleeps!(io::read(fd, buf.cast(), n));
    fn readv(fd: c_int, vec: *const iovec, n: c_int) -> ssize_t
        where io::concerns(fd) => sleeps!(io::vectored(fd, vec, n, false, 0));
    fn preadv2(fd: c_int, vec: *const iovec, n: c_int, off: off_t, flags: c_int) -> ssize_t
        where io::concerns(fd) => sleeps!(io::vectored_at(fd, vec, n, off, flags, false));
    fn preadv64v2(fd: c_int, vec: *const iovec, n: c_int, off: off_t, flags: c_int) -> ssize_t
        where io::concerns(fd) => sleeps!(io::vectored_at(fd, vec, n, off, flags, false));
    fn pwritev2(fd: c_int, vec: *const iovec, n: c_int, off: off_t, flags: c_int) -> ssize_t
        where io::concerns(fd) => sleeps!(io::vectored_at(fd, vec, n, off, flags, true));
    fn pwritev64v2(fd: c_int, vec: *const iovec, n: c_int, off: off_t, flags: c_int) -> ssize_t
        where io::concerns(fd) => sleeps!(io::vectored_at(fd, vec, n, off, flags, true));
    fn sendfile(out: c_int, input: c_int, off: *mut off_t, n: size_t) -> ssize_t
        where table::knows(out) => sleeps!(file::sendfile(out, input, off, n));
    fn sendfile64(out: c_int, input: c_int, off: *mut off_t, n: size_t) -> ssize_t
        where table::knows(out) => sleeps!(file::sendfile(out, input, off, n));
    fn splice(input: c_int, off_in: *mut off_t, out: c_int, off_out: *mut off_t, n: size_t, flags: c_uint) -> ssize_t
        where table::knows(input) || table::knows(out) => sleeps!(file::splice(input, off_in, out, off_out, n, flags)),
        until => if splice_has_passed(until, input, out) { -1 } else { splice(input, off_in, out, off_out, n, flags) };

    // Waiting.
    fn poll(fds: *mut pollfd, n: nfds_t, t: c_int) -> c_int
        where poll::concerns(fds, n as usize) => sleeps!(poll::poll(fds, n as usize, || Some(time::ms(t)), core::ptr::null())),
        until => poll(fds, n, time::ms_left(until, t));
    fn epoll_create(size: c_int) -> c_int
        => if size <= 0 { Outcome::Failed(Errno::INVAL) } else { epoll::create::create(|| raw::epoll_create1(0)) };
    fn epoll_create1(flags: c_int) -> c_int => epoll::create::create(|| raw::epoll_create1(flags));
    fn epoll_ctl(ep: c_int, op: c_int, fd: c_int, ev: *mut epoll_event) -> c_int => epoll::ctl::control(ep, op, fd, event(op, ev));
    fn epoll_wait(ep: c_int, ev: *mut epoll_event, max: c_int, t: c_int) -> c_int
        where epoll::wait::concerns(ep, time::ms_ns(t))
        => sleeps!(epoll::wait::wait(ep, Call::new(ev, max, core::ptr::null()), time::ms_ns(t), || {
            call_next!(epoll_wait(ep => c_int, ev => *mut epoll_event, max => c_int, t => c_int) -> c_int)
        })),
        until => epoll_wait(ep, ev, max, time::ms_left(until, t));
    fn epoll_pwait(ep: c_int, ev: *mut epoll_event, max: c_int, t: c_int, mask: *const sigset_t) -> c_int
        where epoll::wait::concerns(ep, time::ms_ns(t)) => sleeps!(epoll::wait::wait(ep, Call::new(ev, max, mask.cast()), time::ms_ns(t), || {
            call_next!(epoll_pwait(ep => c_int, ev => *mut epoll_event, max => c_int, t => c_int,
                mask => *const sigset_t) -> c_int)
        })),
        until => epoll_pwait(ep, ev, max, time::ms_left(until, t), mask);
    fn epoll_pwait2(ep: c_int, ev: *mut epoll_event, max: c_int, t: *const timespec, mask: *const sigset_t) -> c_int
        where epoll::wait::concerns(ep, 1) => match time::timespec_ns(t) {
            Some(ns) => sleeps!(epoll::wait::wait(ep, Call::new(ev, max, mask.cast()), ns, || {
                call_next!(epoll_pwait2(ep => c_int, ev => *mut epoll_event, max => c_int, t => *const timespec,
                    mask => *const sigset_t) -> c_int)
            })),
            None => Outcome::Pass,
        },
        until => epoll_pwait2(ep, ev, max, time::timespec_left(until).or(t), mask);
}

// Calls that syscall(2) does not pass on by libc's function.
hooks! {
    mod outcomes;

    fn sendmsg(fd: c_int, m: *const msghdr, flags: c_int) -> ssize_t
        where io::concerns(fd) || msg::carries(m) => sleeps!(msg::sendmsg(fd, m, flags));
    fn sendmmsg(fd: c_int, v: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int => sleeps!(msg::sendmmsg(fd, v, n, flags));
    fn ppoll(fds: *mut pollfd, n: nfds_t, t: *const timespec, mask: *const sigset_t) -> c_int
        where poll::concerns(fds, n as usize) => sleeps!(poll::poll(fds, n as usize, || time::timespec(t), mask.cast())),
        until => ppoll(fds, n, time::timespec_left(until).or(t), mask);
    fn select(n: c_int, r: *mut c_void, w: *mut c_void, x: *mut c_void, t: *mut timeval) -> c_int
        where select::concerns(n, [r, w, x]) => sleeps!(any_select(n, [r, w, x], t)),
        until => select(n, r, w, x, time::timeval_left(until, t).or(t));
    fn pselect(n: c_int, r: *mut c_void, w: *mut c_void, x: *mut c_void, t: *const timespec, mask: *const sigset_t) -> c_int
        where select::concerns(n, [r, w, x])
        => match time::timespec(t) {
            Some(d) => sleeps!(select::select(n, [r, w, x], d, mask.cast())),
            None => Outcome::Pass,
        },
        until => pselect(n, r, w, x, time::timespec_left(until).or(t), mask);
}

/// Whether the limit of a splice(2) passes ([`has_passed`]). One of the two numbers is a pipe, as the kernel says: the table of
/// this copy of the library may be another copy's by now.
#[cold]
fn splice_has_passed(until: Until, input: c_int, out: c_int) -> bool {
    let (socket, waits) =
        if raw::fcntl(input, libc::F_GETPIPE_SZ, 0).is_ok() { (out, libc::POLLOUT) } else { (input, libc::POLLIN) };
    has_passed(until, socket, waits)
}

/// Whether the limit of a call (SO_RCVTIMEO, SO_SNDTIMEO) that is to be made anew passes before there is what it waits for,
/// an event of poll(2) at `fd`. Then errno says so, or that a signal has come: a call with a limit is not restarted (signal(7)).
#[cold]
#[inline(never)]
pub(crate) fn has_passed(until: Until, fd: c_int, waits: i16) -> bool {
    if waits == 0 || until == Until::NONE {
        return false;
    }
    let mut at = pollfd { fd, events: waits, revents: 0 };
    // SAFETY: an entry of this function's own. The call goes by the hook, which another copy of the library may have by now.
    match unsafe { poll(core::ptr::from_mut(&mut at), 1, time::ms_left(until, c_int::MAX)) } {
        0 => {
            netacc_sys::weak::set_errno(Errno::AGAIN.0);
            true
        }
        n => n < 0,
    }
}

/// select(2).
pub(crate) unsafe fn any_select(n: c_int, sets: [*mut c_void; 3], t: *mut timeval) -> Outcome {
    // SAFETY: the application's sets and time-out.
    unsafe {
        match time::timeval(t) {
            Some(d) => select_left(select::select(n, sets, d, core::ptr::null()), d, t),
            None => Outcome::Pass,
        }
    }
}

/// Stores the time not slept in the argument, as select(2) on Linux does. musl gives the kernel a copy.
unsafe fn select_left(done: Outcome, d: Deadline, t: *mut timeval) -> Outcome {
    if libc_kind::is_musl() {
        return done;
    }
    // Where the time-out cannot be written, as in a constant, the kernel reports no error.
    if done != Outcome::Pass && !t.is_null() {
        let left = d.left().max(0);
        let left = timeval { tv_sec: left / 1_000_000_000, tv_usec: left % 1_000_000_000 / 1000 };
        // SAFETY: where the program wants it.
        let _ = unsafe { user::store(t, left) };
    }
    done
}

/// The event argument of epoll_ctl(2), if the operation has one.
fn event(op: c_int, ev: *mut epoll_event) -> Option<(u32, u64)> {
    if op == libc::EPOLL_CTL_DEL {
        return None;
    }
    // SAFETY: two numbers, which any bytes are.
    unsafe { user::load(ev) }.map(|e| (e.events, e.u64))
}
