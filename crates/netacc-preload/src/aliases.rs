//! Other names of the intercepted calls: the checked variants that `_FORTIFY_SOURCE` substitutes, and glibc's internal
//! aliases. The length of the destination is checked as glibc does, by ending the program.
//!
//! Names that glibc exports to its own libraries alone (version GLIBC_PRIVATE) are here where such a library uses
//! them on a program's descriptors; `__libc_fork` is not, since the fork of older ones calls it from within ours.

use crate::hooks::has_passed;
use core::ffi::{c_int, c_uint, c_void};
use libc::{mmsghdr, nfds_t, pollfd, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec, timeval};
use netacc_core::conn::{connect, control, io, msg};
use netacc_core::fd::{closing, create, table};
use netacc_core::wait::{poll, select};

fn check(len: size_t, room: size_t) {
    if len > room {
        // As __chk_fail(3) does: the program is about to overrun a buffer.
        call_next!(abort() -> isize);
    }
}

hooks! {
    fn __read_chk(fd: c_int, buf: *mut c_void, n: size_t, room: size_t) -> ssize_t
        where n > room || io::concerns(fd) => {
        check(n, room);
        sleeps!(io::read(fd, buf.cast(), n))
    };
    fn __recv_chk(fd: c_int, buf: *mut c_void, n: size_t, room: size_t, flags: c_int) -> ssize_t
        where n > room || io::concerns(fd) => {
        check(n, room);
        sleeps!(io::recv(fd, buf.cast(), n, flags))
    };
    fn __recvfrom_chk(fd: c_int, buf: *mut c_void, n: size_t, room: size_t, flags: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> ssize_t
        where n > room || io::concerns(fd) => {
        check(n, room);
        io::received_from(sleeps!(io::recv(fd, buf.cast(), n, flags)), addr.cast(), len)
    };
    fn __poll_chk(fds: *mut pollfd, n: nfds_t, t: c_int, room: size_t) -> c_int => {
        check(n as usize * size_of::<pollfd>(), room);
        sleeps!(poll::poll(fds, n as usize, || Some(crate::time::ms(t)), core::ptr::null()))
    }, until => __poll_chk(fds, n, crate::time::ms_left(until, t), room);
    fn __ppoll_chk(fds: *mut pollfd, n: nfds_t, t: *const timespec, mask: *const sigset_t, room: size_t) -> c_int => {
        check(n as usize * size_of::<pollfd>(), room);
        sleeps!(poll::poll(fds, n as usize, || crate::time::timespec(t), mask.cast()))
    }, until => __ppoll_chk(fds, n, crate::time::timespec_left(until).or(t), mask, room);
    fn __connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int
        where table::knows(fd) => sleeps!(connect::connect(fd, addr.cast(), len));
    fn __fcntl(fd: c_int, cmd: c_int, arg: usize) -> c_int
        where control::concerns(fd, cmd) => control::fcntl(fd, cmd, arg);
    fn __dup2(old: c_int, new: c_int) -> c_int => create::dup3(old, new, 0, true);
    fn __poll(fds: *mut pollfd, n: nfds_t, t: c_int) -> c_int
        where poll::concerns(fds, n as usize) => sleeps!(poll::poll(fds, n as usize, || Some(crate::time::ms(t)), core::ptr::null())),
        until => __poll(fds, n, crate::time::ms_left(until, t));
    fn __select(n: c_int, r: *mut c_void, w: *mut c_void, x: *mut c_void, t: *mut timeval) -> c_int
        where select::concerns(n, [r, w, x]) => sleeps!(crate::hooks::any_select(n, [r, w, x], t)),
        until => __select(n, r, w, x, crate::time::timeval_left(until, t).or(t));
    fn __close(fd: c_int) -> c_int where closing::concerns(fd) => closing::close(fd);
    fn __read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t where io::concerns(fd) => sleeps!(io::read(fd, buf.cast(), n));
    fn __write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t
        where io::concerns(fd) => sleeps!(io::send(fd, buf.cast(), n, 0));
    fn __recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t
        where io::concerns(fd) => sleeps!(io::recv(fd, buf.cast(), n, flags));
    fn __sendmmsg(fd: c_int, v: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int => sleeps!(msg::sendmmsg(fd, v, n, flags));
    fn __send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t
        where io::concerns(fd) => sleeps!(io::send(fd, buf.cast(), n, flags));
}

exports! {
    /// closefrom(3) returns nothing.
    fn closefrom(first: c_int) -> () {
        visit!(closefrom(first));
        if closing::close_from(first) == netacc_core::Outcome::Pass {
            let _ = netacc_sys::raw::close_range(first.max(0) as c_uint, c_uint::MAX, 0);
        }
    }
}
