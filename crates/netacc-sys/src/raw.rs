//! Raw system calls on the application's own pointers.
//!
//! # Safety
//! The functions here hand pointers that the *application* gave to a libc call straight on to the
//! kernel, which validates them and answers `EFAULT`; they are therefore exactly as safe as the
//! call the application made. Calls on our own descriptors and buffers go through `rustix`.
#![allow(unsafe_code)]

use crate::errno::{Errno, Result};
use core::ffi::c_void;
use rustix::fd::BorrowedFd;

/// One system call with six arguments; the result is the kernel's, a negative errno on failure.
///
/// # Safety
/// The caller upholds what system call `nr` requires of its arguments: an address at which the kernel writes, or whose
/// mapping it changes, belongs to memory that the caller may change so.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub unsafe fn syscall6(nr: i64, a: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: the x86-64 system call convention (syscall(2)); rcx and r11 are clobbered.
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") nr as isize => ret,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    ret
}

/// One system call with six arguments; the result is the kernel's, a negative errno on failure.
///
/// # Safety
/// The caller upholds what system call `nr` requires of its arguments: an address at which the kernel writes, or whose
/// mapping it changes, belongs to memory that the caller may change so.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub unsafe fn syscall6(nr: i64, a: [usize; 6]) -> isize {
    let ret: isize;
    // SAFETY: the AArch64 system call convention (syscall(2)).
    unsafe {
        core::arch::asm!("svc 0", in("x8") nr, inlateout("x0") a[0] => ret,
            in("x1") a[1], in("x2") a[2], in("x3") a[3], in("x4") a[4], in("x5") a[5], options(nostack));
    }
    ret
}

#[inline(always)]
pub(crate) fn call(nr: i64, a: [usize; 6]) -> Result<usize> {
    // SAFETY: each pointer is the application's own, which its call would have given to the kernel in any case and
    // which the kernel validates, or it points to a local variable that outlives the call.
    let r = unsafe { syscall6(nr, a) };
    if r < 0 { Err(Errno(-(r as i32))) } else { Ok(r as usize) }
}

#[inline(always)]
fn fd(n: i32) -> usize {
    n as isize as usize
}

/// `socket(2)`.
pub fn socket(domain: i32, ty: i32, proto: i32) -> Result<i32> {
    call(libc::SYS_socket, [fd(domain), fd(ty), fd(proto), 0, 0, 0]).map(|n| n as i32)
}

/// `close(2)`.
pub fn close(n: i32) -> Result<()> {
    call(libc::SYS_close, [fd(n), 0, 0, 0, 0, 0]).map(drop)
}

/// Whether a descriptor is null(4), as `fstat(2)` has it.
pub fn is_null_device(n: i32) -> bool {
    // SAFETY: only asked about; a number that is none is an error.
    let found = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(n) });
    found.is_ok_and(|file| file.st_mode & libc::S_IFMT == libc::S_IFCHR && file.st_rdev == libc::makedev(1, 3))
}

/// `close_range(2)`.
pub fn close_range(first: u32, last: u32, flags: u32) -> Result<()> {
    call(libc::SYS_close_range, [first as usize, last as usize, flags as usize, 0, 0, 0]).map(drop)
}

/// `dup(2)`.
pub fn dup(n: i32) -> Result<i32> {
    call(libc::SYS_dup, [fd(n), 0, 0, 0, 0, 0]).map(|n| n as i32)
}

/// `dup3(2)`.
pub fn dup3(old: i32, new: i32, flags: i32) -> Result<i32> {
    call(libc::SYS_dup3, [fd(old), fd(new), fd(flags), 0, 0, 0]).map(|n| n as i32)
}

/// `fcntl(2)` with a third argument as the kernel takes it.
pub fn fcntl(n: i32, cmd: i32, arg: usize) -> Result<i32> {
    call(libc::SYS_fcntl, [fd(n), fd(cmd), arg, 0, 0, 0]).map(|n| n as i32)
}

/// `ioctl(2)`.
pub fn ioctl(n: i32, req: usize, arg: usize) -> Result<i32> {
    call(libc::SYS_ioctl, [fd(n), req, arg, 0, 0, 0]).map(|n| n as i32)
}

/// `connect(2)`.
pub fn connect(n: i32, addr: *const c_void, len: u32) -> Result<()> {
    call(libc::SYS_connect, [fd(n), addr as usize, len as usize, 0, 0, 0]).map(drop)
}

/// `bind(2)`.
pub fn bind(n: i32, addr: *const c_void, len: u32) -> Result<()> {
    call(libc::SYS_bind, [fd(n), addr as usize, len as usize, 0, 0, 0]).map(drop)
}

/// `listen(2)`.
pub fn listen(n: i32, backlog: i32) -> Result<()> {
    call(libc::SYS_listen, [fd(n), fd(backlog), 0, 0, 0, 0]).map(drop)
}

/// `accept4(2)`.
pub fn accept4(n: i32, addr: *mut c_void, len: *mut u32, flags: i32) -> Result<i32> {
    call(libc::SYS_accept4, [fd(n), addr as usize, len as usize, fd(flags), 0, 0]).map(|n| n as i32)
}

/// `getsockname(2)`.
pub fn getsockname(n: i32, addr: *mut c_void, len: *mut u32) -> Result<()> {
    call(libc::SYS_getsockname, [fd(n), addr as usize, len as usize, 0, 0, 0]).map(drop)
}

/// `getsockopt(2)`.
pub fn getsockopt(n: i32, level: i32, name: i32, val: *mut c_void, len: *mut u32) -> Result<()> {
    call(libc::SYS_getsockopt, [fd(n), fd(level), fd(name), val as usize, len as usize, 0]).map(drop)
}

/// `setsockopt(2)`.
pub fn setsockopt(n: i32, level: i32, name: i32, val: *const c_void, len: u32) -> Result<()> {
    call(libc::SYS_setsockopt, [fd(n), fd(level), fd(name), val as usize, len as usize, 0]).map(drop)
}

/// An integer option set on one of our own sockets.
pub fn setsockopt_int(n: i32, level: i32, name: i32, val: i32) -> Result<()> {
    setsockopt(n, level, name, (&raw const val).cast(), 4)
}

/// An integer option read from a socket.
pub fn getsockopt_int(n: i32, level: i32, name: i32) -> Result<i32> {
    let mut val = 0i32;
    let mut len = 4u32;
    getsockopt(n, level, name, (&raw mut val).cast(), &raw mut len)?;
    Ok(val)
}

/// `pread64(2)` or, without an offset, `read(2)`.
pub fn read(n: i32, buf: *mut u8, len: usize, offset: Option<i64>) -> Result<usize> {
    match offset {
        Some(o) => call(libc::SYS_pread64, [fd(n), buf as usize, len, o as usize, 0, 0]),
        None => call(libc::SYS_read, [fd(n), buf as usize, len, 0, 0, 0]),
    }
}

/// `write(2)`.
pub fn write(n: i32, buf: *const u8, len: usize) -> Result<usize> {
    call(libc::SYS_write, [fd(n), buf as usize, len, 0, 0, 0])
}

/// `preadv2(2)` of one piece from where the descriptor stands, which never waits (`RWF_NOWAIT`). `EOPNOTSUPP`: this
/// kernel cannot tell for such a descriptor (pipes: since Linux 6.4).
pub fn read_now(n: i32, buf: *mut u8, len: usize) -> Result<usize> {
    let piece = libc::iovec { iov_base: buf.cast(), iov_len: len };
    call(libc::SYS_preadv2, [fd(n), (&raw const piece).addr(), 1, usize::MAX, 0, fd(libc::RWF_NOWAIT)])
}

/// `pwritev2(2)` of one piece to where the descriptor stands, which never waits (`RWF_NOWAIT`). `EOPNOTSUPP`: as for
/// [`read_now`].
pub fn write_now(n: i32, buf: *const u8, len: usize) -> Result<usize> {
    let piece = libc::iovec { iov_base: buf.cast_mut().cast(), iov_len: len };
    call(libc::SYS_pwritev2, [fd(n), (&raw const piece).addr(), 1, usize::MAX, 0, fd(libc::RWF_NOWAIT)])
}

/// `recvfrom(2)` without a source address.
pub fn recv(n: i32, buf: *mut u8, len: usize, flags: i32) -> Result<usize> {
    call(libc::SYS_recvfrom, [fd(n), buf as usize, len, fd(flags), 0, 0])
}

/// `sendto(2)` without a destination address.
pub fn send(n: i32, buf: *const u8, len: usize, flags: i32) -> Result<usize> {
    call(libc::SYS_sendto, [fd(n), buf as usize, len, fd(flags), 0, 0])
}

/// `recvmsg(2)`.
pub fn recvmsg(n: i32, msg: *mut libc::msghdr, flags: i32) -> Result<usize> {
    call(libc::SYS_recvmsg, [fd(n), msg as usize, fd(flags), 0, 0, 0])
}

/// `recvmmsg(2)`: takes a few waiting datagrams out of a socket, of which nothing is kept. True: there may be more. Their
/// descriptors would be closed by this thread, so none may come with them.
pub fn discard_datagrams(n: i32) -> bool {
    const AT_ONCE: usize = 4;
    // SAFETY: a zeroed message header is valid: it has no address, buffers or control messages.
    let mut all: [libc::mmsghdr; AT_ONCE] = unsafe { core::mem::zeroed() };
    let args = [fd(n), (&raw mut all).addr(), AT_ONCE, fd(libc::MSG_DONTWAIT), 0, 0];
    match call(libc::SYS_recvmmsg, args) {
        Ok(taken) => taken == AT_ONCE,
        Err(Errno::AGAIN) => false,
        // A filter on system calls may know the older call only.
        Err(_) => recv(n, [0u8; 4].as_mut_ptr(), 4, libc::MSG_DONTWAIT).is_ok(),
    }
}

/// `sendmsg(2)`.
pub fn sendmsg(n: i32, msg: *const libc::msghdr, flags: i32) -> Result<usize> {
    call(libc::SYS_sendmsg, [fd(n), msg as usize, fd(flags), 0, 0, 0])
}

/// `sendfile(2)`; `offset` is null or the application's.
pub fn sendfile(out: i32, input: i32, offset: *mut i64, count: usize) -> Result<usize> {
    call(libc::SYS_sendfile, [fd(out), fd(input), offset as usize, count, 0, 0])
}

/// `ppoll(2)`; `timeout` and `sigmask` may be null. The kernel's `sigset_t` has 8 bytes.
pub fn ppoll(fds: *mut libc::pollfd, n: usize, timeout: *mut libc::timespec, sigmask: *const c_void) -> Result<usize> {
    call(libc::SYS_ppoll, [fds as usize, n, timeout as usize, sigmask as usize, 8, 0])
}

/// Whether the table of this process's descriptors has room for 64 numbers only, so that none from 64 on is open. False if
/// that cannot be told.
///
/// select(2) looks at no number beyond the kernel's table and leaves its bit as it is; of one within the table that is not open
/// it says `EBADF`. The kernel gives a program that begins the smallest table in which its descriptors fit, so that this
/// answers for most of them without a look into /proc.
pub fn has_least_descriptors() -> bool {
    let mut read = [0u64, !0];
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let (set, until) = ((&raw mut read).expose_provenance(), (&raw mut now).expose_provenance());
    call(libc::SYS_pselect6, [128, set, 0, 0, until, 0]) == Ok(0) && read == [0, !0]
}

/// The name of the calling thread, as the kernel has it; it ends with the first zero byte.
pub fn thread_name() -> [u8; 16] {
    let mut name = [0u8; 16];
    let _ = call(libc::SYS_prctl, [libc::PR_GET_NAME as usize, name.as_mut_ptr().expose_provenance(), 0, 0, 0, 0]);
    name
}

/// Which of the poll(2) `events` the file has, with those that nobody has to ask for; waits up to `timeout` nanoseconds.
pub fn poll_one(fd: i32, events: i16, timeout: i64) -> Result<i16> {
    let mut p = libc::pollfd { fd, events, revents: 0 };
    let mut ts = libc::timespec { tv_sec: timeout / 1_000_000_000, tv_nsec: timeout % 1_000_000_000 };
    ppoll(&raw mut p, 1, &raw mut ts, core::ptr::null())?;
    Ok(p.revents)
}

/// Which of the poll(2) `events` the file has now, with those that nobody has to ask for. None if the call fails, as in a
/// process without memory.
#[inline]
pub fn events_now(fd: i32, events: i16) -> i16 {
    let mut p = libc::pollfd { fd, events, revents: 0 };
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let _ = ppoll(&raw mut p, 1, &raw mut now, core::ptr::null());
    p.revents
}

/// `epoll_pwait2(2)` where the kernel has it, else `epoll_pwait(2)` with the time-out rounded up.
/// `timeout` is in nanoseconds, negative waits for ever.
pub fn epoll_wait(
    ep: i32,
    ev: *mut libc::epoll_event,
    max: i32,
    timeout: i64,
    sigmask: *const c_void,
) -> Result<usize> {
    epoll_wait_by(ep, ev, max, timeout, sigmask, call)
}

/// [`epoll_wait`], by the given way to make a system call.
pub(crate) fn epoll_wait_by(
    ep: i32,
    ev: *mut libc::epoll_event,
    max: i32,
    timeout: i64,
    sigmask: *const c_void,
    call: impl Fn(i64, [usize; 6]) -> Result<usize>,
) -> Result<usize> {
    let by_ms = |ms: i64| {
        let ms = ms.min(i32::MAX.into()) as i32;
        call(libc::SYS_epoll_pwait, [fd(ep), ev as usize, fd(max), fd(ms), sigmask as usize, 8])
    };
    // Whole milliseconds (the common case) are exact with the older call, which every kernel has.
    if timeout < 0 || timeout % 1_000_000 == 0 {
        return by_ms(if timeout < 0 { -1 } else { timeout / 1_000_000 });
    }
    let ts = libc::timespec { tv_sec: timeout / 1_000_000_000, tv_nsec: timeout % 1_000_000_000 };
    match call(libc::SYS_epoll_pwait2, [fd(ep), ev as usize, fd(max), (&raw const ts) as usize, sigmask as usize, 8]) {
        Err(Errno::NOSYS) => by_ms(timeout / 1_000_000 + 1),
        r => r,
    }
}

/// `epoll_ctl(2)`.
pub fn epoll_ctl(ep: i32, op: i32, n: i32, events: u32, data: u64) -> Result<()> {
    let mut ev = libc::epoll_event { events, u64: data };
    call(libc::SYS_epoll_ctl, [fd(ep), fd(op), fd(n), (&raw mut ev) as usize, 0, 0]).map(drop)
}

/// `futex(2)`: sleeps while `*word == expect`.
pub fn futex_wait(word: &core::sync::atomic::AtomicU32, expect: u32) {
    let _ = call(
        libc::SYS_futex,
        [word.as_ptr() as usize, fd(libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG), expect as usize, 0, 0, 0],
    );
}

/// `futex(2)`: wakes up to `n` sleepers.
pub fn futex_wake(word: &core::sync::atomic::AtomicU32, n: u32) {
    let _ = call(
        libc::SYS_futex,
        [word.as_ptr() as usize, fd(libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG), n as usize, 0, 0, 0],
    );
}

/// `membarrier(2)` with a command that takes no flags.
pub fn membarrier(command: usize) -> Result<()> {
    call(libc::SYS_membarrier, [command, 0, 0, 0, 0, 0]).map(drop)
}

/// `nanosleep(2)`; a signal ends it early.
pub fn sleep_ns(ns: u64) {
    let time = libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
    let _ = call(libc::SYS_nanosleep, [(&raw const time) as usize, 0, 0, 0, 0, 0]);
}

/// Sends `sig` to the calling thread (SIGPIPE must hit the thread that wrote, as the kernel does it).
pub fn raise(sig: i32) {
    // SAFETY: getpid, gettid and tgkill take no pointers.
    unsafe {
        let pid = syscall6(libc::SYS_getpid, [0; 6]) as usize;
        let tid = syscall6(libc::SYS_gettid, [0; 6]) as usize;
        syscall6(libc::SYS_tgkill, [pid, tid, fd(sig), 0, 0, 0]);
    }
}

/// A signal for one thread (tgkill(2)). False: there is no such thread.
pub fn tgkill(pid: u32, tid: u32, signal: i32) -> bool {
    call(libc::SYS_tgkill, [pid as usize, tid as usize, signal as usize, 0, 0, 0]) != Err(Errno(libc::ESRCH))
}

/// `sched_yield(2)`.
pub fn sched_yield() {
    let _ = call(libc::SYS_sched_yield, [0; 6]);
}

/// `getpid(2)`.
pub fn getpid() -> u32 {
    call(libc::SYS_getpid, [0; 6]).unwrap_or(0) as u32
}

/// `getresuid(2)`: the real, the effective and the saved user.
pub fn getresuid() -> [u32; 3] {
    let mut users = [0u32; 3];
    let [real, effective, saved] = users.each_mut().map(|user| core::ptr::from_mut(user).expose_provenance());
    let _ = call(libc::SYS_getresuid, [real, effective, saved, 0, 0, 0]);
    users
}

/// `kcmp(2)`-free duplicate of `n` at a number of at least `min`, close-on-exec.
pub fn dup_above(n: i32, min: i32) -> Result<i32> {
    fcntl(n, libc::F_DUPFD_CLOEXEC, min as usize)
}

/// The process and the user at the other end of a UNIX socket (`SO_PEERCRED`), as our own namespaces number them. A
/// process of a PID namespace that we cannot see into is 0, for which rustix' type has no room.
pub fn peer_credentials(n: i32) -> Result<(u32, u32)> {
    let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as u32;
    getsockopt(n, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut cred).cast(), &raw mut len)?;
    Ok((cred.pid as u32, cred.uid))
}

/// `getpeername(2)`.
pub fn getpeername(n: i32, addr: *mut c_void, len: *mut u32) -> Result<()> {
    call(libc::SYS_getpeername, [fd(n), addr as usize, len as usize, 0, 0, 0]).map(drop)
}

/// `epoll_create1(2)`.
pub fn epoll_create1(flags: i32) -> Result<i32> {
    call(libc::SYS_epoll_create1, [fd(flags), 0, 0, 0, 0, 0]).map(|n| n as i32)
}

/// Whether a process exists (kill(2) with signal 0).
pub fn process_exists(pid: u32) -> bool {
    call(libc::SYS_kill, [pid as usize, 0, 0, 0, 0, 0]) != Err(Errno(libc::ESRCH))
}

/// `shutdown(2)`.
pub fn shutdown(n: i32, how: i32) -> Result<()> {
    call(libc::SYS_shutdown, [fd(n), fd(how), 0, 0, 0, 0]).map(drop)
}

/// `lseek(2)` to where the file is: `ESPIPE` for what has no position.
pub fn position(n: i32) -> Result<usize> {
    call(libc::SYS_lseek, [fd(n), 0, fd(libc::SEEK_CUR), 0, 0, 0])
}

/// `gettid(2)`.
pub fn gettid() -> u32 {
    call(libc::SYS_gettid, [0; 6]).unwrap_or(0) as u32
}

/// Calls `run` in a process of its own, for which this one need not wait and which sends no signal when it ends. `run`
/// must use nothing but system calls and its own stack, since the locks of other threads may be in any state there. All
/// signals are blocked in it.
pub fn detached(run: impl FnOnce()) -> Result<()> {
    let all = [!0u8; 8];
    let mut old = [0u8; 8];
    let mask = |how: i32, set: *const u8, was: *mut u8| {
        call(libc::SYS_rt_sigprocmask, [how as usize, set as usize, was as usize, 8, 0, 0])
    };
    mask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr())?;
    // No flags and no exit signal: a copy of the process whose end is not signalled (clone(2)).
    let child = call(libc::SYS_clone, [0; 6]);
    if child == Ok(0) {
        // The second process loses its parent at once, so that this one need not wait for it.
        let second = call(libc::SYS_clone, [0; 6]);
        if second == Ok(0) {
            run();
        }
        exit_group(second.is_err().into());
    }
    let status = child.map(|pid| reap(pid as u32));
    mask(libc::SIG_SETMASK, old.as_ptr(), core::ptr::null_mut())?;
    // Why the second clone failed is not told, but there is hardly another reason.
    if status?.is_some_and(|status| status != 0) { Err(Errno::AGAIN) } else { Ok(()) }
}

/// Waits for the end of a child and returns how it ended (wait4(2)); `None` if that is not known.
pub fn reap(pid: u32) -> Option<i32> {
    const WALL: usize = 0x4000_0000;
    let mut status = 0i32;
    loop {
        match call(libc::SYS_wait4, [pid as usize, (&raw mut status) as usize, WALL, 0, 0, 0]) {
            Err(Errno::INTR) => {}
            Err(_) => return None,
            Ok(_) => return Some(status),
        }
    }
}

/// Whether a child has ended and was not waited for (waitid(2)).
pub fn has_ended_child() -> bool {
    let mut info = [0u64; 16];
    let flags = (libc::WEXITED | libc::WNOHANG | libc::WNOWAIT) as usize;
    let done = call(libc::SYS_waitid, [libc::P_ALL as usize, 0, info.as_mut_ptr() as usize, flags, 0, 0]);
    // Without such a child the kernel leaves the signal's number at 0.
    done.is_ok() && info.first().is_some_and(|word| *word as i32 == libc::SIGCHLD)
}

/// Ends the process (exit_group(2)).
pub fn exit_group(status: i32) -> ! {
    loop {
        let _ = call(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]);
    }
}

/// The name that ps(1) shows for the calling thread; NUL-terminated, at most 16 bytes (prctl(2)).
pub fn set_name(name: &[u8; 16]) {
    let _ = call(libc::SYS_prctl, [libc::PR_SET_NAME as usize, name.as_ptr() as usize, 0, 0, 0, 0]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_above_63_are_noticed_though_they_are_idle() {
        let idle = socket(libc::AF_UNIX, libc::SOCK_DGRAM, 0).unwrap();
        let high = dup_above(idle, 64).unwrap();
        assert!(!has_least_descriptors());
        let all: Vec<i32> = (64..128).filter_map(|_| dup_above(idle, 64).ok()).collect();
        assert!(!has_least_descriptors());
        all.into_iter().chain([idle, high]).for_each(|fd| close(fd).unwrap());
    }

    #[test]
    fn a_thread_has_its_name() {
        let named = std::thread::Builder::new().name("a name".into()).spawn(thread_name).unwrap();
        assert_eq!(named.join().unwrap(), *b"a name\0\0\0\0\0\0\0\0\0\0");
    }
}
